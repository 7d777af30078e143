"""What communicates in the data room, over real ranks."""

import hashlib
from itertools import chain

import pytest
import torch
from torch.utils.data import TensorDataset

from hvdtrain.data.loader import evaluation_loader, loader
from hvdtrain.data.permutation import Permutation
from hvdtrain.data.sources import Divided, Sharded
from hvdtrain.data.staging import stage
from hvdtrain.data.stream import stream_loader
from hvdtrain.errors import HvdtrainError

SHARDS = [f"shard-{number}" for number in range(9)]


def numbers(epoch):
    return range(37)


def read_shard(name):
    number = int(name.split("-")[1])
    return range(10 * number, 10 * number + number + 1)


def gathered(run, value):
    return run.collectives.gather_json(value, "test.data")


def outcome(function):
    """What a function raises, as text; ranks exchange it before they assert."""
    try:
        function()
    except HvdtrainError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_epoch_is_the_global_order_on_any_number_of_ranks(run, num_workers):
    train = loader(run, TensorDataset(torch.arange(50)), global_batch_size=7, num_workers=num_workers)
    mine = []
    for batch in train:
        mine.append(batch.data[0].tolist())
        batch.commit()
    train.close()
    everyone = gathered(run, mine)
    # everyone: (size, steps, samples)
    joined = [sample for step in zip(*everyone, strict=True) for share in step for sample in share]
    assert joined == Permutation(50, seed=run.seed, epoch=0)[0:50].tolist()


def test_an_evaluation_visits_each_sample_once(run):
    held_out = evaluation_loader(run, TensorDataset(torch.arange(23)), batch_size=4)
    everyone = gathered(run, [batch.indices.tolist() for batch in held_out])
    assert list(chain.from_iterable(chain.from_iterable(everyone))) == list(range(23))


@pytest.mark.parametrize("source", [Divided(numbers), Sharded(SHARDS, read_shard)])
def test_a_stream_is_read_once_and_stepped_alike(run, source):
    steps = list(stream_loader(run, source, global_batch_size=8))
    everyone = gathered(run, [[batch.global_samples, batch.data.tolist()] for batch in steps])
    assert len({len(batches) for batches in everyone}) == 1
    for step in zip(*everyone, strict=True):
        assert {total for total, _ in step} == {sum(len(data) for _, data in step)}
    read = sorted(sample for batches in everyone for _, data in batches for sample in data)
    whole = numbers(0) if isinstance(source, Divided) else chain.from_iterable(map(read_shard, SHARDS))
    assert read == sorted(whole)


def test_data_is_staged_to_every_rank_of_a_host(run, tmp_path):
    folder = run.collectives.broadcast_json(str(tmp_path), "test.folder")
    source, destination = tmp_path / "source", tmp_path.__class__(folder) / "copy"
    if run.topology.is_root:
        (source / "deep").mkdir(parents=True)
        for number in range(5):
            (source / "deep" / str(number)).write_bytes(hashlib.shake_256(bytes([number])).digest(50_000 * number))
    copy = stage(source, destination, collectives=run.collectives, chunk_bytes=30_000)
    hashes = [hashlib.sha256((copy / "deep" / str(number)).read_bytes()).hexdigest() for number in range(5)]
    everyone = gathered(run, hashes)
    assert everyone == [everyone[0]] * run.topology.size
    assert stage(source, destination, collectives=run.collectives) == copy


def test_a_source_that_is_missing_fails_alike_on_every_rank(run, tmp_path):
    faults = gathered(run, outcome(lambda: stage(tmp_path / "none", tmp_path / "copy", collectives=run.collectives)))
    assert "no such file" in faults[0]
    assert len(set(faults)) == 1
