"""Profiles: what is written is read, what does not belong there is refused, and what was typed wins."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.cli.run import read_command
from hvdtrain.errors import ConfigError
from hvdtrain.profile import Launching, Prediction, Profile, missing_variables, read, unfollowed, write
from hvdtrain.train.pace import KEPT, WARM_UP, Pace

FULL = Profile(
    settings={"sync.bucket_bytes": 2**21, "sync.strategy": "shared_memory"},
    launch=Launching(binding="none", yielding=False, variables={"HOROVOD_CYCLE_TIME": "0.5"}),
    predictions={4: Prediction(ms_per_step=10.0, low=8.0, high=12.0)},
    origin={"recipe": "digits"},
)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "digits.profile"


@pytest.mark.parametrize("profile", [Profile(), FULL])
def test_what_was_written_is_read(profile, file):
    write(profile, file)
    assert read(file) == profile


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"settings": {"optimizer.lr": 9}}, "optimizer.lr is no setting of the exchange"),
        ({"launch": {"variables": {"LD_PRELOAD": "1"}}}, "launch.variables.LD_PRELOAD is none of"),
        ({"launch": {"variables": {"HOROVOD_CYCLE_TIME": "fast"}}}, "is no number in a string"),
        ({"launch": {"binding": "socket"}}, "launch.binding is 'socket'"),
        ({"launch": {"yielding": "yes"}}, "launch.yielding is 'yes'"),
        ({"launch": {"nice": 3}}, "launch.nice is unknown"),
        ({"launch": []}, "launch is no table"),
        ({"predictions": {"4": {"ms_per_step": 1}}}, "predictions.4 is none"),
        ({"command": "rm"}, "command is unknown"),
        ({"hvdtrain_profile": 2}, 'it does not say "hvdtrain_profile": 1'),
    ],
)
def test_what_does_not_belong_there_is_refused(change, said, file):
    file.write_text(json.dumps({"hvdtrain_profile": 1, **change}))
    with pytest.raises(ConfigError) as refused:
        read(file)
    assert said in str(refused.value)
    assert "hvdtrain tune" in str(refused.value)


@pytest.mark.parametrize("content", ["", "[1]", "{", "sync: {}"])
def test_other_files_are_no_profiles(content, file):
    file.write_text(content)
    with pytest.raises(ConfigError, match="use the profile"):
        read(file)


def test_a_missing_file_is_named(file):
    with pytest.raises(ConfigError, match=r"digits\.profile"):
        read(file)


def test_command_line_over_file_over_profile_over_defaults(file, tmp_path):
    write(Profile(settings={"sync.bucket_bytes": 1, "sync.overlap": False, "sync.batchnorm": "sync"}), file)
    config = tmp_path / "config.yaml"
    config.write_text("sync: {bucket_bytes: 2, overlap: true}\n")
    words = ["digits", "--profile", str(file), "--config", str(config), "--sync.bucket_bytes", "3"]
    command = read_command(words)
    assert command.chosen == {"sync.bucket_bytes": 3, "sync.overlap": True, "sync.batchnorm": "sync"}


def test_settings_of_a_profile_are_checked_like_others(file):
    write(Profile(settings={"sync.bucket_bytes": "many", "sync.bucket": 3}), file)
    with pytest.raises(ConfigError) as refused:
        read_command(["digits", "--profile", str(file)])
    assert "2 faults" in str(refused.value)
    assert "sync.bucket_bytes is 'many'" in str(refused.value)


def test_variables_that_are_set_win():
    assert missing_variables(FULL, {}) == {"HOROVOD_CYCLE_TIME": "0.5"}
    assert missing_variables(FULL, {"HOROVOD_CYCLE_TIME": "1"}) == {}


def test_what_only_the_launcher_could_do_is_named_where_it_did_not():
    assert [sentence.split()[0] for sentence in unfollowed(FULL, {})] == ["launch.binding", "launch.yielding"]
    assert unfollowed(FULL, {"HVDTRAIN_PROFILE": "digits.profile"}) == []
    assert unfollowed(Profile(), {}) == []


def test_a_prediction_is_compared_in_one_sentence():
    said = FULL.predictions[4].against(11.0)
    assert (
        said
        == "11.00 ms per step measured, 10.00 predicted, which is -9 % off and within the interval of 8.00 to 12.00"
    )
    assert "outside" in FULL.predictions[4].against(13.0)


def paced(times, prediction=None):
    clock = iter(times)
    pace = Pace(prediction, clock=lambda: next(clock))
    for _ in times:
        pace.step_ended(None, None)
    return pace


@given(st.integers(WARM_UP + 2, 2 * KEPT))
def test_the_pace_of_even_steps_is_theirs(steps):
    pace = paced([0.25 * number for number in range(steps)])
    assert pace.ms_per_step == pytest.approx(250.0)


def test_the_first_steps_and_outliers_do_not_count():
    pace = paced([0.0, 9.0, 18.0, 27.0, *(27.0 + 0.01 * n for n in range(1, 20)), 99.0])
    assert pace.ms_per_step == pytest.approx(10.0)


def test_too_few_steps_have_no_pace():
    assert paced([0.0, 1.0]).ms_per_step is None


def test_what_lies_between_epochs_is_no_step():
    clock = iter([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 100.0, 101.0])
    pace = Pace(None, clock=lambda: next(clock))
    for _ in range(6):
        pace.step_ended(None, None)
    pace.evaluated(None, {})
    pace.step_ended(None, None)
    pace.step_ended(None, None)
    assert pace.ms_per_step == pytest.approx(1000.0)


def test_prediction_and_reality_are_logged_at_the_end():
    said = []
    log = SimpleNamespace(info=lambda text, *values: said.append(text % values))
    pace = paced([0.01 * number for number in range(20)], FULL.predictions[4])
    pace.fit_ended(SimpleNamespace(run=SimpleNamespace(log=log)))
    assert said == [
        "10.00 ms per step measured, 10.00 predicted, which is +0 % off and within the interval of 8.00 to 12.00"
    ]
    assert pace.fields()["predicted_ms_per_step"] == 10.0
