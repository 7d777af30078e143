"""Who is told, and what becomes of records that come from another host's clock; MPI itself is in tests/faults."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.phases import SIZE, Phases, Record, decode
from hvdtrain.watchdog.heartbeat import Heartbeat, readers, shifted, start

HOSTS = ["a", "a", "b", "b", "c"]


def record(rank, **fields):
    known = {"host": HOSTS[rank], "pid": 1, "born": 1, "ended": False, "step": 7, "phase": "data", "waits": False}
    known |= {"since": 100.0, "moved": 100.0, "beat": 130.0, "until": 0.0, "section": "", "busy": False}
    return Record(rank=rank, **{**known, **fields})


class Request:
    def __init__(self):
        self.taken = False

    def Test(self):
        return self.taken


class Communicator:
    """Keeps what is sent."""

    def __init__(self):
        self.sent = []

    def Isend(self, message, *, dest, tag):
        self.sent.append((dest, decode(message[0]), Request()))
        return self.sent[-1][2]


def test_root_and_the_first_rank_elsewhere_are_told():
    assert readers(HOSTS) == (0, 2)
    assert readers(["a", "a"]) == (0,)


@pytest.mark.parametrize(("rank", "told"), [(0, [2]), (1, [2]), (2, [0]), (3, [0]), (4, [0, 2])])
def test_ranks_of_the_same_host_need_no_message(rank, told):
    communicator = Communicator()
    image = Phases(rank=rank, host=HOSTS[rank]).image()
    Heartbeat(communicator, rank=rank, hosts=HOSTS).send(image)
    assert len(image) == SIZE
    assert [(dest, sent.rank) for dest, sent, _ in communicator.sent] == [(dest, rank) for dest in told]


def test_a_rank_that_takes_no_messages_is_sent_one_only():
    communicator = Communicator()
    heartbeat = Heartbeat(communicator, rank=4, hosts=HOSTS)
    image = Phases(rank=4).image()
    for _ in range(5):
        heartbeat.send(image)
    assert [dest for dest, _, _ in communicator.sent] == [0, 2]
    communicator.sent[1][2].taken = True  # the deputy's
    heartbeat.send(image)
    assert [dest for dest, _, _ in communicator.sent] == [0, 2, 2]


def arrived(*records, ahead=0.0):
    heartbeat = Heartbeat(Communicator(), rank=0, hosts=HOSTS)
    for each in records:
        heartbeat._received[each.rank] = each
        heartbeat._ahead[each.rank] = ahead
    return heartbeat


def test_the_later_of_two_looks_counts_and_the_last_sign_of_life():
    old_file, new_message = record(2, moved=100.0, beat=110.0), record(2, step=8, moved=120.0, beat=125.0)
    assert arrived(new_message).merge({2: old_file})[2].step == 8
    new_file = record(2, step=9, moved=124.0, beat=110.0)
    merged = arrived(new_message).merge({2: new_file})[2]
    assert (merged.step, merged.beat) == (9, 125.0)


def test_ranks_that_sent_nothing_are_as_their_files_say():
    assert arrived().merge({1: record(1)}) == {1: record(1)}


@given(st.floats(-1e5, 1e5))
def test_times_are_those_of_this_hosts_clock(ahead):
    got = arrived(record(2, until=500.0), ahead=ahead).merge({2: record(2, until=500.0)})[2]
    assert (got.since, got.moved) == (100.0 - ahead, 100.0 - ahead)
    assert (got.beat, got.until) == (130.0 - ahead, 500.0 - ahead)
    assert shifted(record(2), ahead).until == 0.0


def test_one_host_or_gloo_needs_no_mpi():
    assert start(["a", "a"], rank=0, controller="mpi") is None
    assert start(HOSTS, rank=0, controller="gloo") is None
