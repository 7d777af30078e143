import json
import os
import random
from itertools import chain

import pytest
import torch
from positions import job, on_ranks
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hvdtrain.collectives import Collectives, SoloTransport
from hvdtrain.data.agreement import Piece, agreed_steps
from hvdtrain.data.coverage import Digest, Receipt, check_coverage, fingerprint
from hvdtrain.data.foreign import samples_in, wrap_dataloader
from hvdtrain.data.sources import Divided, Sharded, Slot
from hvdtrain.data.stream import stream_loader
from hvdtrain.errors import ConfigError, CoverageError, OrderError

SOLO = Collectives(SoloTransport())


def run_of(collectives):
    run = job()
    run.topology, run.collectives = collectives.topology, collectives
    return run


def numbers(epoch):
    return range(100 * epoch, 100 * epoch + 37)


def unstable(epoch):
    """Another order in every process and at every call."""
    values = list(range(37))
    random.Random(os.urandom(8)).shuffle(values)
    return values


SHARDS = [f"shard-{number}" for number in range(7)]


def read_shard(name):
    number = int(name.split("-")[1])
    return range(10 * number, 10 * number + number + 1)


ALL_OF_SHARDS = sorted(chain.from_iterable(map(read_shard, SHARDS)))


def epoch_of(loader, steps=None):
    for number, batch in enumerate(loader):
        if number == steps:
            return
        yield batch
        batch.commit()


@pytest.mark.parametrize(("size", "num_workers"), [(1, 0), (2, 0), (3, 0), (2, 2)])
def test_a_divided_source_is_read_once_by_all_together(size, num_workers):
    def rank_main(collectives):
        train = stream_loader(run_of(collectives), Divided(numbers), global_batch_size=8, num_workers=num_workers)
        epochs = [list(epoch_of(train)) for _ in range(2)]
        train.close()
        return epochs

    by_rank = on_ranks(size, rank_main)
    for epoch in (0, 1):
        steps = list(zip(*(epochs[epoch] for epochs in by_rank), strict=True))
        read = [value for step in steps for batch in step for value in batch.data.tolist()]
        assert sorted(read) == list(numbers(epoch))
        for step in steps:
            assert {batch.global_samples for batch in step} == {sum(batch.samples for batch in step)}
            assert len({(batch.start, batch.stop, batch.epoch) for batch in step}) == 1
        assert (steps[0][0].start, steps[-1][0].stop) == (0, 37)


@pytest.mark.parametrize(("size", "num_workers"), [(1, 0), (1, 2), (3, 0), (7, 0)])
def test_shards_are_read_once_by_all_together(size, num_workers):
    def rank_main(collectives):
        source = Sharded(SHARDS, read_shard)
        train = stream_loader(run_of(collectives), source, global_batch_size=8, num_workers=num_workers)
        read = [batch.data.tolist() for _ in range(2) for batch in epoch_of(train)]
        train.close()
        return read

    by_rank = on_ranks(size, rank_main)
    assert len({len(batches) for batches in by_rank}) == 1  # a rank whose shards are short has empty batches
    assert sorted(chain.from_iterable(chain.from_iterable(by_rank))) == sorted(2 * ALL_OF_SHARDS)


def test_the_order_of_shards_is_another_in_each_epoch():
    def order(epoch):
        return list(Sharded(SHARDS, lambda name: [name]).read(Slot(seed=0, epoch=epoch, rank=0, size=1), None))

    assert sorted(order(0)) == SHARDS
    assert order(0) != order(1)
    assert order(0) == order(0)


def test_fewer_shards_than_ranks_are_refused_on_all():
    def rank_main(collectives):
        return list(stream_loader(run_of(collectives), Sharded(SHARDS[:2], read_shard), global_batch_size=8))

    faults = on_ranks(3, rank_main)
    assert all(isinstance(fault, ConfigError) and "nothing to read for rank 2" in str(fault) for fault in faults)


def test_a_source_in_another_order_on_each_slot_is_found():
    def rank_main(collectives):
        return list(epoch_of(stream_loader(run_of(collectives), Divided(unstable), global_batch_size=8)))

    faults = on_ranks(2, rank_main)
    assert {type(fault) for fault in faults} == {CoverageError}
    assert "as many as there are, so some twice and others not at all" in str(faults[0])


def test_a_source_that_is_longer_on_one_rank_is_found():
    def rank_main(collectives):
        extra = collectives.topology.rank
        source = Divided(lambda epoch: range(37 + extra))
        return list(epoch_of(stream_loader(run_of(collectives), source, global_batch_size=8)))

    assert all("between 37 and 38 samples" in str(fault) for fault in on_ranks(2, rank_main))


def test_a_shard_that_two_ranks_read_is_found():
    class Greedy(Sharded):
        def read(self, slot, receipt):
            return super().read(Slot(seed=0, epoch=slot.epoch, rank=0, size=2), receipt)

    faults = on_ranks(2, lambda c: list(stream_loader(run_of(c), Greedy(SHARDS, read_shard), global_batch_size=8)))
    assert all("8 samples were read of 7" in str(fault) for fault in faults)


def test_a_stream_goes_on_where_it_was_committed():
    def loader():
        run = job()
        run.collectives = SOLO
        return stream_loader(run, Divided(numbers), global_batch_size=5)

    whole = loader()
    expected = [batch.data.tolist() for _ in range(2) for batch in epoch_of(whole)]
    for stop in range(17):
        first = loader()
        read = []
        for batch in chain.from_iterable(epoch_of(first, stop - 8 * epoch) for epoch in range(1 + (stop > 8))):
            read.append(batch.data.tolist())
        second = loader()
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        rest = [batch for _ in range(2 - len(read) // 8) for batch in epoch_of(second)]
        assert read + [batch.data.tolist() for batch in rest] == expected, stop
        if rest:
            assert rest[0].start == 5 * (stop % 8)


def test_a_stream_divided_otherwise_begins_its_epoch_anew_and_says_so(caplog):
    run = job()
    run.collectives = SOLO
    first = stream_loader(run, Divided(numbers), global_batch_size=5)
    list(epoch_of(first, 3))
    second = stream_loader(run, Divided(numbers), global_batch_size=6)
    second.load_state_dict(first.state_dict())
    assert "epoch 0 begins anew" in caplog.text
    assert len(list(epoch_of(second))) == 7
    with pytest.raises(ConfigError):
        second.load_state_dict({"epoch": 1})


def test_commits_out_of_order_are_refused():
    run = job()
    run.collectives = SOLO
    _, second, *_ = stream_loader(run, Divided(numbers), global_batch_size=5)
    with pytest.raises(OrderError, match="0 steps of epoch 0 are committed"):
        second.commit()


@pytest.mark.parametrize("lookahead", [1, 3, 4, 100])
@pytest.mark.parametrize("lengths", [[0, 0], [1, 1], [4, 7], [12, 1, 3], [3, 3, 3]])
def test_all_ranks_make_as_many_steps_as_the_longest(lengths, lookahead):
    def rank_main(collectives):
        mine = lengths[collectives.topology.rank]
        pieces = (Piece(torch.full((2, 3), step), 2) for step in range(mine))
        return list(agreed_steps(pieces, collectives, lookahead=lookahead))

    for rank, steps in enumerate(on_ranks(len(lengths), rank_main)):
        assert len(steps) == max(lengths)
        assert [step.last for step in steps] == [False] * (len(steps) - 1) + [True] * bool(steps)
        for number, step in enumerate(steps):
            assert step.global_samples == 2 * sum(length > number for length in lengths)
            assert step.piece.samples == len(step.piece.data) == 2 * (number < lengths[rank])
            assert step.piece.data.shape[1] == 3


def test_a_foreign_dataloader_is_stepped_alike_and_told_its_epoch(caplog):
    dataset = TensorDataset(torch.arange(21))

    def rank_main(collectives):
        rank, size = collectives.topology.rank, collectives.topology.size
        sampler = DistributedSampler(dataset, num_replicas=size, rank=rank, seed=4)
        train = wrap_dataloader(run_of(collectives), DataLoader(dataset, batch_size=4, sampler=sampler))
        return [batch.data[0].tolist() for _ in range(2) for batch in epoch_of(train)]

    by_rank = on_ranks(3, rank_main)
    assert [len(batches) for batches in by_rank] == [4, 4, 4]
    assert sorted(chain.from_iterable(chain.from_iterable(by_rank))) == sorted(2 * list(range(21)))
    assert by_rank[0][:2] != by_rank[0][2:]  # set_epoch was called
    assert len([record for record in caplog.records if "of your own is wrapped" in record.message]) == 1


def test_a_foreign_dataloader_goes_on_by_leaving_out(caplog):
    run = job()
    run.collectives = SOLO
    dataset = TensorDataset(torch.arange(20))
    first, second = (wrap_dataloader(run, DataLoader(dataset, batch_size=4)) for _ in range(2))
    read = [batch.data[0].tolist() for batch in epoch_of(first, 2)]
    second.load_state_dict(first.state_dict())
    assert read + [batch.data[0].tolist() for batch in epoch_of(second)] == torch.arange(20).view(5, 4).tolist()


@pytest.mark.parametrize("data", [torch.zeros(3, 2), [torch.zeros(3)], {"n": 1, "x": torch.zeros(3)}])
def test_samples_are_counted_by_the_first_tensor(data):
    assert samples_in(data) == 3


def test_batches_without_a_tensor_need_to_be_counted_by_their_owner():
    with pytest.raises(ConfigError, match="samples_of"):
        samples_in(["a", "b"])


def test_different_contents_have_different_fingerprints():
    values = [0, 0.0, "0", b"0", None, False, [0], [[0]], [0, 0], {"0": 0}, torch.zeros(2), torch.zeros(1, 2)]
    values += [torch.zeros(2, dtype=torch.float64), torch.zeros(2).numpy(), ["ab", "c"], ["a", "bc"], torch.ones(2)]
    assert len({fingerprint(value) for value in values}) == len(values)
    assert fingerprint({"x": (1, torch.ones(2, 2).t())}) == fingerprint({"x": [1, torch.ones(2, 2)]})
    with pytest.raises(TypeError, match="give `key`"):
        fingerprint(object())


def test_repetitions_do_not_cancel_in_a_digest():
    digest = Digest()
    for value in (1, 1, 2):
        digest.add(fingerprint(value))
    one = Digest()
    one.add(fingerprint(2))
    assert (digest.count, digest.total) != (one.count, one.total)
    check_coverage(SOLO, [])
    check_coverage(SOLO, [Receipt(kept=digest, whole=digest)])
