"""What comes after an attempt is one pure decision."""

import signal
from dataclasses import replace

import pytest

from hvdtrain.launch.aftermath import Again, Attempt, Policy, after
from hvdtrain.launch.spec import Host, LaunchSpec

HOSTS = tuple(Host(name=name, slots=2) for name in ("a", "b", "c"))
SPEC = LaunchSpec(command=("hvdtrain", "run", "digits"), size=4, cores_per_host=2, hosts=HOSTS)
POLICY = Policy(max_restarts=3)


def names(then):
    return [host.name for host in then.spec.hosts]


@pytest.mark.parametrize("status", [0, 2])
def test_done_and_impossible_end_it(status):
    assert after(Attempt(status=status), SPEC, POLICY, restarts=0) == ""


@pytest.mark.parametrize("status", [1, 75, 137])
def test_without_restarts_the_first_attempt_is_the_last(status):
    assert after(Attempt(status=status), SPEC, Policy(), restarts=0) == ""


@pytest.mark.parametrize("status", [75, 1])
def test_who_asks_for_the_end_gets_it(status):
    attempt = Attempt(status=status, stopped_by=signal.SIGINT)
    assert after(attempt, SPEC, POLICY, restarts=0) == ""


def test_75_does_not_count_even_when_restarts_are_used_up():
    then = after(Attempt(status=75), SPEC, POLICY, restarts=3)
    assert isinstance(then, Again)
    assert not then.counted
    assert then.spec.hosts == HOSTS


def test_failures_count_wait_longer_and_stop_at_the_cap():
    waits = [after(Attempt(status=1), SPEC, Policy(max_restarts=9), restarts=n).wait_s for n in range(8)]
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    assert "used up" in after(Attempt(status=1), SPEC, POLICY, restarts=3)


def test_a_training_goes_on_from_its_checkpoint_whatever_it_said():
    spec = replace(SPEC, command=("/opt/hvdtrain", "run", "digits", "--resume", "never", "--run-dir", "x"))
    then = after(Attempt(status=1), spec, POLICY, restarts=0)
    assert then.spec.command == ("/opt/hvdtrain", "run", "digits", "--run-dir", "x", "--resume", "auto")
    other = after(Attempt(status=1), replace(SPEC, command=("python", "x.py")), POLICY, restarts=0)
    assert other.spec.command == ("python", "x.py")


def test_a_lost_host_is_left_out_and_the_job_keeps_its_size_where_it_can():
    then = after(Attempt(status=1, lost=("b",)), SPEC, POLICY, restarts=0)
    assert (names(then), then.spec.size) == (["a", "c"], 4)


def test_with_too_few_slots_it_shrinks_only_as_far_as_allowed():
    two = replace(SPEC, hosts=HOSTS[:2])
    attempt = Attempt(status=1, lost=("b",))
    assert "2 slots are left for at least 4 ranks" in after(attempt, two, POLICY, restarts=0)
    then = after(attempt, two, replace(POLICY, min_np=2), restarts=0)
    assert (names(then), then.spec.size) == (["a"], 2)


def test_the_host_that_failed_is_left_out_where_that_costs_nothing():
    assert names(after(Attempt(status=1, failed_on="a"), SPEC, POLICY, restarts=0)) == ["b", "c"]
    full = replace(SPEC, size=6)
    assert names(after(Attempt(status=1, failed_on="a"), full, POLICY, restarts=0)) == ["a", "b", "c"]


def test_a_host_that_failed_twice_is_left_out_where_min_np_allows_it():
    full, attempt = replace(SPEC, size=6), Attempt(status=1, failed_on="a")
    policy = replace(POLICY, min_np=4)
    assert names(after(attempt, full, policy, restarts=0)) == ["a", "b", "c"]
    then = after(attempt, full, policy, restarts=1, failed_before="a")
    assert (names(then), then.spec.size) == (["b", "c"], 4)


def test_one_host_alone_starts_again_as_it_was():
    alone = replace(SPEC, hosts=())
    then = after(Attempt(status=1, failed_on="x"), alone, POLICY, restarts=0)
    assert (then.spec.hosts, then.spec.size) == ((), 4)
