"""Ranks are placed on hosts by their slots, in order; what does not fit is refused with the line to type."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.errors import LaunchError
from hvdtrain.launch.spec import Host, LaunchSpec


def spec(size, *hosts):
    return LaunchSpec(command=("true",), size=size, cores_per_host=2, hosts=hosts)


def test_hosts_are_filled_in_order():
    first, second = Host(name="a", slots=2), Host(name="b", slots=2)
    assert spec(3, first, second).places() == ((first, 2), (second, 1))


def test_a_host_without_ranks_is_left_out():
    first = Host(name="a", slots=2)
    assert spec(2, first, Host(name="b")).places() == ((first, 2),)


def test_slots_come_before_max_slots():
    first, second = Host(name="a", slots=1, max_slots=4), Host(name="b", slots=1)
    assert spec(3, first, second).places() == ((first, 2), (second, 1))


def test_too_few_slots_name_what_fits():
    with pytest.raises(LaunchError) as caught:
        spec(5, Host(name="a", slots=2), Host(name="b", slots=2)).places()
    assert "4 slots on 2 hosts: a:2,b:2" in caught.value.found
    assert caught.value.remedy.startswith("-np 4")


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=6), st.data())
def test_every_rank_has_a_place_within_the_limits(slots, data):
    hosts = [Host(name=f"h{i}", slots=n, max_slots=n + more) for i, (n, more) in enumerate(slots)]
    size = data.draw(st.integers(1, sum(host.limit for host in hosts)))
    places = spec(size, *hosts).places()
    assert sum(count for _, count in places) == size
    assert all(0 < count <= host.limit for host, count in places)


@pytest.mark.parametrize(("size", "command"), [(0, ("true",)), (2, ())])
def test_an_impossible_job_is_refused(size, command):
    with pytest.raises(LaunchError):
        LaunchSpec(command=command, size=size, cores_per_host=2)
