"""Ranks save and restore together: one writes, all know what became of it, and all hold the same afterwards."""

import logging
import threading
from itertools import count

import pytest
import torch

from hvdtrain.checkpoint import manifest as manifests
from hvdtrain.checkpoint.manager import CheckpointManager, PerRank
from hvdtrain.checkpoint.store import Store
from hvdtrain.collectives import Collectives, SoloTransport
from hvdtrain.errors import CheckpointError, InvalidCheckpoint, ReplicaMismatch, RootFailed, StepMismatch
from hvdtrain.statetree import tree_digest

ALONE = Collectives(SoloTransport())


def manager_in(directory, collectives=ALONE, **fields):
    return CheckpointManager(directory, **{"collectives": collectives, "run_id": "b6", **fields})


def full_disk(snapshot):
    raise OSError(28, "No space left on device")


# ---- alone: when, and in which order


def test_what_was_saved_is_restored(tmp_path, state_at):
    with manager_in(tmp_path / "c", config={"lr": 0.1}) as manager:
        assert manager.restore_latest() is None
        manager.save(3, state_at(3), {"loss": torch.tensor(0.5)})
        restored = manager.restore_latest()
        assert restored.step == 3
        assert tree_digest(restored.state) == tree_digest(state_at(3))
        assert (restored.manifest.config, restored.manifest.metrics) == ({"lr": 0.1}, {"loss": 0.5})
        assert tree_digest(manager.restore(3).state) == tree_digest(state_at(3))
        with pytest.raises(InvalidCheckpoint, match="step-00000004"):
            manager.restore(4)


def test_making_a_manager_touches_no_file(tmp_path):
    manager_in(tmp_path / "c").close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("rule", "moments"),
    [
        ({"every_steps": 4}, [(4, None), (8, 2)]),
        ({"every_epochs": 1}, [(6, 1), (8, 2)]),
        ({"every_epochs": 2}, [(8, 2)]),
        ({"every_steps": 4, "every_epochs": 1}, [(4, None), (6, 1), (8, 2)]),
        ({}, []),
    ],
)
def test_it_is_due_after_so_many_steps_or_epochs(tmp_path, rule, moments):
    manager = manager_in(tmp_path, **rule)
    run = [(0, None), *((step, {6: 1, 8: 2}.get(step)) for step in range(1, 9))]
    assert [(step, epochs) for step, epochs in run if manager.due(step, epochs_done=epochs)] == moments


def test_the_steps_go_on_while_it_writes_and_the_copy_stands_still(tmp_path):
    store, go, published = Store(tmp_path / "c"), threading.Event(), threading.Event()

    def publish(snapshot):
        assert go.wait(20)
        store.publish(snapshot)
        published.set()

    weight = torch.zeros(1000)
    with manager_in(tmp_path / "c", publish=publish) as manager:
        manager.save(1, {"model": {"w": weight}})
        weight += 1  # the next step, before a byte was written
        assert store.steps() == []
        go.set()
        assert published.wait(20)
    assert store.read(1).entries["model"]["w"].abs().sum() == 0


def test_one_save_is_in_flight_and_the_next_one_waits_for_it(tmp_path):
    running, most, order = [], [], []
    entered, go = threading.Event(), threading.Event()

    def publish(snapshot):
        running.append(snapshot.step)
        most.append(len(running))
        entered.set()
        assert go.wait(20)
        order.append((snapshot.step, snapshot.entries["model"].tensors["w"].item()))
        running.remove(snapshot.step)

    weight = torch.zeros(())
    with manager_in(tmp_path / "c", publish=publish) as manager:
        manager.save(1, {"model": {"w": weight}})
        assert entered.wait(20)
        weight.fill_(2.0)
        second = threading.Thread(target=manager.save, args=(2, {"model": {"w": weight}}))
        second.start()
        go.set()
        second.join(20)
    assert (order, max(most)) == ([(1, 0.0), (2, 2.0)], 1)


def test_the_last_save_is_awaited_at_exit_even_by_an_exception(tmp_path):
    go, done = threading.Event(), []

    def publish(snapshot):
        assert go.wait(20)
        done.append(snapshot.step)

    def leave():
        with manager_in(tmp_path / "c", publish=publish) as manager:
            manager.save(1, {"model": {"w": 1}})
            go.set()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    assert done == [1]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hvdtrain-save")]


def test_without_a_thread_it_is_on_disk_when_save_returns(tmp_path, state_at):
    manager = manager_in(tmp_path / "c", asynchronous=False)
    manager.save(1, state_at(1))
    assert Store(tmp_path / "c").steps() == [1]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hvdtrain-save")]


def test_durations_are_measured_by_the_clock_given(tmp_path, state_at):
    ticks = count()
    manager = manager_in(tmp_path / "c", asynchronous=False, clock=lambda: float(next(ticks)))
    assert (manager.last_save_s, manager.last_blocked_s) == (None, None)
    manager.save(1, state_at(1))
    assert (manager.last_save_s, manager.last_blocked_s) == (1.0, 3.0)


def test_leftovers_are_cleared_before_the_first_save_and_before_reading(tmp_path, state_at):
    for number, act in enumerate((lambda m: m.restore_latest(), lambda m: m.save(1, state_at(1)))):
        left = tmp_path / f"c{number}" / ".staging-step-00000001-00"
        left.mkdir(parents=True)
        with manager_in(left.parent) as manager:
            act(manager)
        assert not left.exists()


def test_the_configuration_is_taken_as_it_was(tmp_path):
    config = {"layers": [1, 2], "nested": {"a": (1,)}}
    manager = manager_in(tmp_path / "c", config=config, asynchronous=False)
    config["layers"].append(3)
    manager.save(1, {})
    assert Store(tmp_path / "c").read(1).manifest.config == {"layers": [1, 2], "nested": {"a": [1]}}
    with pytest.raises(TypeError):
        manager_in(tmp_path / "c", config={"f": print})


# ---- failures


@pytest.mark.parametrize("asynchronous", [True, False])
def test_under_warn_a_full_disk_is_a_warning_and_the_old_checkpoint_stays(tmp_path, state_at, caplog, asynchronous):
    manager_in(tmp_path / "c", asynchronous=False).save(1, state_at(1))
    with manager_in(tmp_path / "c", publish=full_disk, asynchronous=asynchronous) as manager:
        manager.save(2, state_at(2))
        manager.save(3, state_at(3))
    assert "no checkpoint at step 2" in caplog.text
    assert "no checkpoint at step 3" in caplog.text
    assert "No space left" in caplog.text
    assert manager.last_save_s is None
    assert manager_in(tmp_path / "c").restore_latest().step == 1


def test_under_fail_a_full_disk_raises(tmp_path, state_at):
    manager = manager_in(tmp_path / "c", publish=full_disk, on_error="fail", asynchronous=False)
    with pytest.raises(CheckpointError, match=r"step 2 .*\n.*No space left"):
        manager.save(2, state_at(2))


@pytest.mark.parametrize("report", ["save", "poll", "close"])
def test_a_failure_in_the_background_is_reported_at_the_next_occasion(tmp_path, state_at, report):
    manager = manager_in(tmp_path / "c", publish=full_disk, on_error="fail")
    manager.save(2, state_at(2))
    manager._writer._thread.join(20)
    assert manager.failed
    occasions = {"save": lambda: manager.save(3, state_at(3)), "poll": manager.poll, "close": manager.close}
    with pytest.raises(CheckpointError, match="step 2"):
        occasions[report]()
    assert not manager.failed
    manager.close()


def test_a_fault_of_the_program_is_never_only_a_warning(tmp_path, state_at):
    def broken(snapshot):
        raise ZeroDivisionError("a bug")

    with (
        pytest.raises(CheckpointError, match="ZeroDivisionError: a bug"),
        manager_in(tmp_path, publish=broken) as manager,
    ):
        manager.save(1, state_at(1))


def test_polling_while_it_writes_says_nothing_and_does_not_wait(tmp_path, state_at):
    go = threading.Event()
    with manager_in(tmp_path, publish=lambda snapshot: go.wait(20)) as manager:
        manager.save(1, state_at(1))
        manager.poll()
        assert not manager.failed
        go.set()


def test_versions_that_differ_are_named(tmp_path, state_at, caplog, monkeypatch):
    manager = manager_in(tmp_path / "c", asynchronous=False)
    manager.save(1, state_at(1))
    there = manifests.library_versions()
    from hvdtrain.checkpoint import delivery

    monkeypatch.setattr(delivery.manifests, "library_versions", lambda: {**there, "torch": "9.9", "horovod": "1.0"})
    with caplog.at_level(logging.WARNING):
        manager.restore_latest()
    assert f"torch {there['torch']} -> 9.9" in caplog.text
    assert "python" not in caplog.text


# ---- several ranks


@pytest.mark.parametrize("size", [2, 3])
def test_root_alone_writes_and_every_rank_gets_root_s_state_and_its_own_values(tmp_path, on_ranks, state_at, size):
    def train(collectives):
        rank = collectives.topology.rank
        own = (torch.tensor([rank], dtype=torch.uint8), [rank, None])
        with manager_in(tmp_path / "c", collectives) as manager:
            manager.save(5, {**state_at(5 if rank == 0 else 0), "rng": PerRank(own)})
            restored = manager.restore_latest()
        return restored, manager.last_save_s is not None, manager._store.directory

    for rank, (restored, knows, _) in enumerate(on_ranks(size, train)):
        own = restored.state.pop("rng")
        assert (own[0].tolist(), own[1]) == ([rank], [rank, None])
        assert tree_digest(restored.state) == tree_digest(state_at(5))
        assert (restored.step, restored.manifest.size, knows) == (5, size, True)


def test_per_rank_values_are_not_dealt_out_to_another_number_of_ranks(tmp_path, on_ranks, caplog):
    def saving(collectives):
        with manager_in(tmp_path / "c", collectives) as manager:
            manager.save(5, {"rng": PerRank(collectives.topology.rank), "model": {}})

    assert on_ranks(2, saving) == [None, None]
    results = on_ranks(3, lambda collectives: manager_in(tmp_path / "c", collectives).restore_latest())
    assert [restored.state for restored in results] == [{"rng": None, "model": {}}] * 3
    assert "saved by 2 ranks and there are 3 now: each rank's own rng is not restored" in caplog.text


@pytest.mark.parametrize("report", ["save", "poll", "close"])
def test_every_rank_hears_of_a_failure_on_root(tmp_path, on_ranks, report):
    def train(collectives):
        manager = manager_in(tmp_path / "c", collectives, publish=full_disk, on_error="fail")
        manager.save(1, {"model": {}})
        if manager._writer._thread:
            manager._writer._thread.join(20)
        {"save": lambda: manager.save(2, {"model": {}}), "poll": manager.poll, "close": manager.close}[report]()

    results = on_ranks(3, train)
    assert [type(result) for result in results] == [CheckpointError] * 3
    assert all("No space left" in result.found for result in results)


def test_ranks_at_different_steps_save_nothing(tmp_path, on_ranks):
    results = on_ranks(2, lambda c: manager_in(tmp_path / "c", c).save(10 + c.topology.rank, {}))
    assert [type(result) for result in results] == [StepMismatch] * 2
    assert "[10, 11]" in results[0].found
    assert not (tmp_path / "c").exists()


def test_a_state_that_is_not_plain_is_refused_on_every_rank(tmp_path, on_ranks):
    def shared(collectives):
        manager_in(tmp_path / "c", collectives).save(1, {"optimizer": {"state": {0: {"foo": print}}}})

    def own(collectives):
        value = print if collectives.topology.rank == 1 else 0
        manager_in(tmp_path / "c", collectives).save(1, {"rng": PerRank([value])})

    def uneven(collectives):
        manager_in(tmp_path / "c", collectives).save(1, {"rng": PerRank(0)} if collectives.topology.is_root else {})

    for function, found in (
        (shared, "rank 0: optimizer.state.0.foo: a builtin_function_or_method"),
        (own, "rank 1: rng.0: a builtin_function_or_method"),
        (uneven, "different per-rank entries"),
    ):
        results = on_ranks(2, function)
        assert [type(result) for result in results] == [CheckpointError] * 2
        assert all(found in result.found for result in results)


def test_an_invalid_checkpoint_is_refused_on_every_rank(tmp_path, on_ranks):
    (tmp_path / "c" / "step-00000003").mkdir(parents=True)
    for function, kind in (
        (lambda c: manager_in(tmp_path / "c", c).restore(3), InvalidCheckpoint),
        (lambda c: manager_in(tmp_path / "c", c).restore_latest(), CheckpointError),
    ):
        assert [type(result) for result in on_ranks(2, function)] == [kind] * 2


def test_what_arrives_differently_is_found_and_named(tmp_path, on_ranks, state_at):
    manager_in(tmp_path / "c", asynchronous=False).save(3, state_at(3))

    def restore(collectives):
        honest = collectives._transport.broadcast
        if collectives.topology.rank == 1:

            def garbled(tensor, name):
                received = honest(tensor, name)
                if name.endswith("tree.data"):
                    received[0] ^= 1
                return received

            collectives._transport.broadcast = garbled
        return manager_in(tmp_path / "c", collectives).restore_latest()

    results = on_ranks(2, restore)
    assert [type(result) for result in results] == [ReplicaMismatch] * 2
    assert "ranks [1]" in results[0].found
    assert "model.weight" in results[0].found


def test_trouble_on_root_while_reading_is_known_to_all(tmp_path, on_ranks):
    (tmp_path / "c").mkdir()

    def restore(collectives):
        manager = manager_in(tmp_path / "c", collectives)
        manager._store.newest_valid = lambda: 1 / 0
        return manager.restore_latest()

    assert [type(result) for result in on_ranks(2, restore)] == [ZeroDivisionError, RootFailed]
