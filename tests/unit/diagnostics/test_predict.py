"""The model of scaling: lines recover what made them, and forecasts keep the laws of networks."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.cli import main
from hvdtrain.diagnostics.predict.algorithms import ALGORITHMS, chosen, cost
from hvdtrain.diagnostics.predict.line import Line, fit
from hvdtrain.diagnostics.predict.measure import from_reports, nbytes_of
from hvdtrain.diagnostics.predict.model import Fitted, Link, Network, forecast
from hvdtrain.diagnostics.predict.report import as_json, text
from hvdtrain.errors import UsageError
from hvdtrain.profile import read

SIZES = (1024.0, 65536.0, 1048576.0)
STEP = {
    "models": {
        "tiny": {
            side: {"median_ms": ms, "ci95_ms": None} for side, ms in (("no_communication", 3.0), ("hvdtrain", 5.0))
        }
    }
}
ALLREDUCE = {
    "sizes": {
        label: {"horovod": {"median_us": us}} for label, us in (("64B", 500.0), ("64KB", 600.0), ("64MB", 90_000.0))
    }
}


COMPUTE = Line(2.0, 0.1)


def fitted(latency_us=50.0, us_per_byte=0.08, compute=COMPUTE, **changes):
    """A network without anything that a model leaves out."""
    message = Line(latency_us, us_per_byte)
    nbytes = 2**20
    exchange = 1e-3 * cost("rabenseifner", 2).us(nbytes, exchange=message, one_way=message)
    horovod = Line(2 * latency_us, us_per_byte)
    two = compute.at(32) + exchange
    given = {
        "compute": compute,
        "two_ranks": {1.0: two, 2.0: 2 * two},
        "spread": 0.02,
        "links": dict.fromkeys((1.0, 2.0), Link(one_way=message, exchange=message, horovod=horovod)),
        "gradient_bytes": nbytes,
        "bucket_bytes": 2**23,
        "samples": 64,
    }
    return Fitted(**{**given, **changes})


@given(st.floats(1.0, 1e5), st.floats(1e-5, 10.0))
def test_a_line_recovers_latency_and_bandwidth(latency_us, us_per_byte):
    made = Line(latency_us, us_per_byte)
    found = fit({x: made.at(x) for x in SIZES})
    assert found.at(SIZES[0]) == pytest.approx(made.at(SIZES[0]), rel=1e-5)
    assert found.slope == pytest.approx(us_per_byte, rel=1e-4)
    assert found.worst < 1e-5


@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=3))
def test_no_line_is_negative(heights):
    line = fit(dict(zip(SIZES, heights, strict=False)))
    assert line.intercept >= 0
    assert line.slope >= 0


def test_a_line_needs_points_above_zero():
    for points in ({}, {1.0: 0.0}):
        with pytest.raises(ValueError, match="a line through"):
            fit(points)


@given(st.sampled_from(sorted(ALGORITHMS)), st.integers(2, 600))
def test_nobody_sends_less_than_the_bound_of_an_all_reduce(algorithm, size):
    """2 (size - 1) / size buffers, by whatever algorithm (Patarasu and Yuan 2009)."""
    of = cost(algorithm, size)
    assert (
        sum(of.exchanges + of.passes + of.around) >= 2 * (size - 1) / size - 1e-9 or algorithm == "recursive_doubling"
    )
    assert len(of.exchanges + of.passes + of.around) >= (size - 1).bit_length()


def test_three_ranks_are_dearer_than_four():
    unit = Line(0.0, 1.0)
    us = [cost("rabenseifner", size).us(1.0, exchange=unit, one_way=unit) for size in (2, 3, 4)]
    assert us == [1.0, 3.0, 1.5]
    apart, together = ({"nbytes": 2**20, "between_hosts": between} for between in (True, False))
    assert chosen("openmpi", (5, 0), size=3, **together) == "rabenseifner"
    assert chosen("openmpi", (5, 0), size=3, **apart) == "ring"
    assert chosen("openmpi", (4, 0), size=3, **together) == "ring"
    assert chosen("hydra", (4,), size=3, nbytes=100, between_hosts=False) == "ring"
    assert chosen("openmpi", (5, 0), size=16, nbytes=100, between_hosts=True) == "recursive_doubling"


def test_a_ring_lies_between_messages_one_way_and_exchanges():
    slow, fast = Line(0.0, 2.0), Line(0.0, 1.0)
    one_way, between, exchanged = (
        cost("ring", 4).us(1.0, exchange=exchange, one_way=one_way)
        for exchange, one_way in ((fast, fast), (slow, fast), (slow, slow))
    )
    assert one_way < between < exchanged


def test_two_ranks_are_foretold_as_they_were_measured():
    model = fitted()
    assert forecast(model, size=2).ms == pytest.approx(model.two_ranks[1.0])
    assert forecast(model, size=1).ms == pytest.approx(model.compute.at(64))


@given(st.floats(1.0, 1e4), st.floats(1.0, 1e4), st.integers(2, 64))
def test_more_bandwidth_is_never_slower(one, other, size):
    slow, fast = sorted((one, other))
    model = fitted(us_per_byte=1e-4)
    low, high = (forecast(model, size=size, network=Network(bandwidth_mbit=rate)).ms for rate in (fast, slow))
    assert low <= high + 1e-9


@given(st.floats(1.0, 1e5), st.floats(1.0, 1e5), st.integers(2, 64))
def test_more_latency_is_never_faster(one, other, size):
    near, far = sorted((one, other))
    low, high = (
        forecast(fitted(), size=size, network=Network(bandwidth_mbit=100, latency_us=us)).ms for us in (near, far)
    )
    assert low <= high + 1e-9


@given(st.integers(1, 5), st.booleans())
def test_the_exchange_of_powers_of_two_grows_with_ranks(power, crowded):
    model = fitted(fixed_per_rank=True, compute=Line(2.0, 0.0), cores=2 if crowded else None)
    assert forecast(model, size=2**power).ms < forecast(model, size=2 ** (power + 1)).ms


@given(st.integers(1, 256), st.sampled_from([None, Network(bandwidth_mbit=100.0)]))
def test_the_interval_holds_the_figure_and_widens_beyond_what_was_measured(size, network):
    one = forecast(fitted(), size=size, network=network)
    assert one.low <= one.ms <= one.high
    if size > 2 or (network and size > 1):
        assert (one.high - one.low) / one.ms > 2 * 0.02


@given(st.floats(0.0, 0.5), st.integers(1, 5))
def test_more_pairs_wait_longer_for_the_slowest(unsteady, power):
    link = Link(one_way=COMPUTE, exchange=COMPUTE, horovod=COMPUTE, unsteady=unsteady)
    assert link.slowest(1) == COMPUTE
    assert link.slowest(2**power).slope >= link.slowest(2 ** (power - 1)).slope
    assert Link(one_way=COMPUTE, exchange=COMPUTE, horovod=COMPUTE).slowest(2**power) == COMPUTE


def test_backward_hides_no_more_than_the_exchange():
    model = fitted()
    hiding = fitted(two_ranks={1.0: model.compute.at(32) + 1.0})
    one = forecast(hiding, size=4)
    assert one.parts["hidden in backward"][0] > 0
    assert one.ms >= hiding.compute.at(16)


def test_reports_of_bench_are_enough():
    model = from_reports(STEP, ALLREDUCE, model="tiny")
    assert model.compute.at(123) == 3.0
    assert forecast(model, size=2).ms == pytest.approx(5.0)
    assert nbytes_of("64KB") == 65536
    with pytest.raises(UsageError, match="is missing there"):
        from_reports(STEP, {"sizes": {}}, model="cnn")


def test_what_was_measured_is_told_from_what_is_a_model():
    model = fitted(cores=2)
    shown = text(model, [forecast(model, size=4)], network=Network(bandwidth_mbit=100), subject="digits")
    assert shown.index("measured, on one and two ranks") < shown.index("predicted") < shown.index("rabenseifner")
    assert "100 Mbit/s and 50 us, which were not measured" in shown
    tree = json.loads(json.dumps(as_json(model, [forecast(model, size=4)], network=None)))
    assert tree["forecasts"]["4"]["parts"]["exchange"]["from"] == "model beyond two ranks"


def test_the_verb_reads_reports_and_writes_a_profile(tmp_path, capsys):
    for name, tree in (("step", STEP), ("allreduce", ALLREDUCE)):
        (tmp_path / name).write_text(json.dumps(tree))
    words = ["predict", "--step", str(tmp_path / "step"), "--allreduce", str(tmp_path / "allreduce"), "--model", "tiny"]
    out = tmp_path / "out.profile"
    assert (
        main([*words, "--ranks", "2,4", "--bandwidth", "100Mbit", "--latency", "1ms", "--json", "--out", str(out)]) == 0
    )
    tree = json.loads(capsys.readouterr().out)
    assert tree["assumed"]["network"] == {"bandwidth_mbit": 100.0, "latency_us": 1000.0}
    assert read(out).prediction(4).ms_per_step == tree["forecasts"]["4"]["ms_per_step"]


def test_what_cannot_be_predicted_is_refused_at_once(capsys):
    assert main(["predict", "--ranks", "4", "--starts", "0", "--latency", "1ms"]) == 2
    said = capsys.readouterr().err
    assert "a recipe, or --step" in said
    assert "--starts 1 or more" in said
    assert "--latency together with --bandwidth" in said
