"""Tuning: halving finds the best, the space holds what makes sense, and only what is proved becomes a profile."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.cli import main
from hvdtrain.cli.tune import recipe_of, text
from hvdtrain.diagnostics.tune.candidates import DEFAULT, STRATEGIES, Candidate, sample, space
from hvdtrain.diagnostics.tune.halving import halve
from hvdtrain.diagnostics.tune.search import Found, Task
from hvdtrain.errors import UsageError
from hvdtrain.profile import Profile, faults, read, write

TASK = Task(recipe=("digits",), size=2)
FAST = Candidate(settings=(("sync.bucket_bytes", 2**20),), variables=(("HOROVOD_CYCLE_TIME", "0.5"),), yielding=False)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=60, unique=True), st.integers(2, 5))
def test_without_noise_the_best_wins(figures, keep):
    rounds = halve(figures, lambda candidate, steps: float(candidate), steps=10, keep=keep)
    assert rounds[-1].best == min(figures)
    assert len(rounds[0].ranking) == len(figures)


@given(st.integers(1, 60), st.integers(2, 5))
def test_fewer_go_on_for_longer(count, keep):
    calls = []
    rounds = halve(range(count), lambda candidate, steps: calls.append(steps) or candidate, steps=10, keep=keep)
    assert len(rounds[-1].ranking) <= 2
    for before, after in pairwise(rounds):
        assert len(after.ranking) < len(before.ranking)
        assert after.steps == 2 * before.steps
        assert {one for one, _ in after.ranking} <= {one for one, _ in before.ranking}
    assert sum(len(one.ranking) for one in rounds) == len(calls)


def test_what_cannot_run_never_goes_on():
    rounds = halve(["a", "b", "c", "d"], lambda one, steps: 1.0 if one == "c" else math.inf, steps=10)
    assert [one for one, _ in rounds[1].ranking] == ["c"]
    assert rounds[-1].best == "c"


def test_where_nothing_runs_the_first_is_left():
    assert halve(["default", "b"], lambda one, steps: math.inf, steps=10)[-1].best == "default"


def test_there_must_be_candidates():
    with pytest.raises(ValueError, match="no candidates"):
        halve([], lambda one, steps: 0.0, steps=1)


def test_every_candidate_is_a_profile_that_can_be_read(tmp_path):
    everything = space(ranks=2, cores=2, nondeterministic=True)
    assert len(set(everything)) == len(everything)
    strategies = {dict(one.settings).get("sync.strategy", "allreduce") for one in everything}
    assert strategies == set(STRATEGIES)
    for candidate in everything[::37]:
        write(candidate.profile(), tmp_path / "p")
        assert read(tmp_path / "p") == candidate.profile()


def test_what_the_user_has_chosen_stays():
    fixed = space(ranks=2, cores=2, given={"sync.bucket_bytes"}, nondeterministic=True)
    assert fixed
    assert not [one for one in fixed if "sync.bucket_bytes" in dict(one.settings)]
    assert {dict(one.settings).get("sync.strategy") for one in space(ranks=1, cores=1, given={"sync.strategy"})} == {
        None
    }


def test_a_core_of_its_own_only_where_there_are_enough():
    assert {one.binding for one in space(ranks=2, cores=2)} == {None, "core"}
    assert {one.binding for one in space(ranks=3, cores=2)} == {None}


def test_bits_that_depend_on_timing_are_asked_for():
    assert not [one for one in space(ranks=1, cores=1) if "sync.deterministic" in dict(one.settings)]
    assert [one for one in space(ranks=1, cores=1, nondeterministic=True) if "sync.deterministic" in dict(one.settings)]


@given(st.integers(1, 300), st.integers(0, 99))
def test_a_sample_has_the_defaults_and_no_candidate_twice(count, seed):
    everything = space(ranks=2, cores=2)
    chosen = sample(everything, count=count, seed=seed)
    assert chosen[0] == DEFAULT
    assert len(chosen) == len(set(chosen)) <= count + 1
    assert chosen == sample(everything, count=count, seed=seed)


def test_a_small_sample_holds_every_strategy():
    chosen = sample(space(ranks=2, cores=2), count=6, seed=0)
    assert {dict(one.settings).get("sync.strategy", "allreduce") for one in chosen} == set(STRATEGIES)


def found(default, tuned):
    rounds = halve([DEFAULT, FAST], lambda one, steps: 1.0 if one == FAST else 2.0, steps=10)
    return Found(task=TASK, rounds=rounds, winner=FAST, samples={"default": default, "tuned": tuned})


def test_a_winner_that_is_proved_is_kept(tmp_path):
    one = found([10.0, 11.0, 10.5, 10.2, 10.8, 10.1], [8.0, 8.5, 8.2, 8.1, 8.4, 8.3])
    assert one.proved
    assert one.profile().settings == {"sync.bucket_bytes": 2**20}
    assert one.profile().launch.yielding is False
    assert "proved" in text(one, tmp_path / "digits.profile")
    assert one.as_json()["over_default"]["high"] < 1


@pytest.mark.parametrize(
    ("default", "tuned"),
    [
        ([10.0] * 6, [8.0, 12.0, 8.0, 12.0, 8.0, 8.0]),  # sometimes slower
        ([10.0, 10.0], [5.0, 5.0]),  # too few starts
        ([10.0] * 6, [10.0] * 6),  # no difference
    ],
)
def test_the_defaults_are_kept_where_nothing_is_proved(default, tuned, tmp_path):
    one = found(default, tuned)
    assert not one.proved
    assert (one.profile().settings, one.profile().launch) == (Profile().settings, Profile().launch)
    assert "the defaults are kept" in text(one, tmp_path / "p")
    assert not faults({"hvdtrain_profile": 1, "origin": dict(one.profile().origin)})


def test_where_the_defaults_win_nothing_is_compared(tmp_path):
    rounds = halve([DEFAULT], lambda one, steps: 1.0, steps=10)
    one = Found(task=TASK, rounds=rounds, winner=DEFAULT, samples={})
    assert not one.proved
    assert "the defaults won" in text(one, tmp_path / "p")
    assert one.as_json()["winner"] == "the defaults"


def test_recipes_and_commands():
    assert recipe_of(["digits"]) == "digits"
    assert recipe_of(["hvdtrain", "run", "digits"]) == "digits"
    with pytest.raises(UsageError, match="only a recipe"):
        recipe_of(["python", "train.py"])


def test_impossible_numbers_are_refused_at_once(capsys):
    assert main(["tune", "digits", "-np", "0", "--steps", "1"]) == 2
    said = capsys.readouterr().err
    assert "-np 0" in said
    assert "--steps 1, expected 6 or more" in said
