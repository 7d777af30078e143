import json
import random
from itertools import chain

import numpy as np
import pytest
import torch
from positions import job
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from hvdtrain.data.augmentation import Augmented
from hvdtrain.data.loader import Loader, evaluation_loader, loader
from hvdtrain.data.permutation import Permutation
from hvdtrain.data.sampler import Sampler
from hvdtrain.errors import ConfigError, OrderError


class Squares:
    """Samples that tell which they are, and who read what."""

    def __init__(self, n):
        self.n = n
        self.read = []

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.read.append(index)
        return {"x": torch.full((2,), float(index)), "y": index * index}


def jitter(sample, generator):
    return sample["x"] + torch.rand((), generator=generator)


def committed(loader, steps=None):
    for number, batch in enumerate(loader):
        if number == steps:
            return
        yield batch
        batch.commit()


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_batches_of_all_ranks_are_the_global_batch(size):
    ranks = [loader(job(rank, size), Squares(13), global_batch_size=4) for rank in range(size)]
    order = Permutation(13, seed=3, epoch=0)
    steps = list(zip(*map(committed, ranks), strict=True))
    assert len(steps) == len(ranks[0]) == 4
    for step in steps:
        assert [batch.samples for batch in step] == [len(batch.indices) for batch in step]
        joined = np.concatenate([batch.indices for batch in step])
        np.testing.assert_array_equal(joined, order[step[0].start : step[0].stop])
        assert len(joined) == step[0].global_samples
        x = torch.cat([batch.data["x"] for batch in step])
        assert x.tolist() == [[float(i)] * 2 for i in joined]
        assert torch.cat([batch.data["y"] for batch in step]).tolist() == [i * i for i in joined]


def test_a_rank_without_samples_has_data_of_the_right_kind():
    last = loader(job(2, 3), Squares(5), global_batch_size=4)
    full, empty = committed(last)
    assert (full.samples, empty.samples) == (1, 0)
    assert empty.global_samples == 1
    assert empty.indices.dtype == np.int64
    assert empty.data["x"].shape == (0, 2)
    assert empty.data["y"].dtype == full.data["y"].dtype
    assert [samples for _, samples in empty.split(2)] == [0, 0]


def test_the_next_iteration_is_the_next_epoch_once_all_is_committed():
    train = loader(job(), Squares(10), global_batch_size=4)
    first = [batch.indices.tolist() for batch in committed(train)]
    second = [batch.indices.tolist() for batch in committed(train)]
    assert train.epoch == 1
    assert list(chain.from_iterable(first)) == Permutation(10, seed=3, epoch=0)[0:10].tolist()
    assert list(chain.from_iterable(second)) == Permutation(10, seed=3, epoch=1)[0:10].tolist()


def test_what_was_not_committed_is_given_again():
    train = loader(job(), Squares(10), global_batch_size=4)
    first, second, _ = train
    first.commit()
    assert next(iter(train)).indices.tolist() == second.indices.tolist()
    assert train.epoch == 0


def test_a_batch_cannot_be_committed_before_the_one_before():
    first, second, _ = loader(job(), Squares(10), global_batch_size=4)
    with pytest.raises(OrderError):
        second.commit()
    first.commit()
    second.commit()


def test_a_loader_goes_on_at_another_size_from_its_state():
    used = []
    state = None
    for size, steps in ((2, 3), (3, 2), (1, 4), (4, None)):
        ranks = [loader(job(rank, size), Squares(101), global_batch_size=7) for rank in range(size)]
        if state is not None:
            for rank in ranks:
                rank.load_state_dict(json.loads(state))
        for step in zip(*(committed(rank, steps) for rank in ranks), strict=True):
            used += [index for batch in step for index in batch.indices.tolist()]
        states = {json.dumps(rank.state_dict()) for rank in ranks}
        assert len(states) == 1
        state = states.pop()
    assert used == Permutation(101, seed=3, epoch=0)[0:101].tolist()


def test_indices_are_those_that_were_read():
    dataset = Squares(10)
    train = loader(job(1, 2), dataset, global_batch_size=4)
    told = [index for batch in committed(train) for index in batch.indices.tolist()]
    assert told == dataset.read[: len(told)]


def test_loading_leaves_the_generators_of_the_model_alone():
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    list(committed(loader(job(), Augmented(Squares(10), jitter), global_batch_size=4)))
    reseeded = Augmented(Squares(10), lambda sample: sample["x"] + torch.rand(()), reseed=True)
    list(committed(loader(job(), reseeded, global_batch_size=4)))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert before[2] == np.random.get_state()[1].tolist()


def test_a_fault_in_a_data_set_names_the_sample():
    class Broken(Squares):
        def __getitem__(self, index):
            raise OSError("disk on fire")

    train = loader(job(), Broken(4), global_batch_size=2, shuffle=False)
    with pytest.raises(OSError, match="disk on fire") as caught:
        next(iter(train))
    assert caught.value.__notes__ == ["while reading sample 0 in epoch 0"]


def test_a_collate_function_of_ones_own_is_used():
    train = loader(job(), Squares(6), global_batch_size=4, collate=lambda samples: [s["y"] for s in samples])
    assert [len(batch.data) for batch in train] == [4, 2]


def test_microbatches_are_the_default_of_split():
    train = loader(job(), TensorDataset(torch.arange(8)), global_batch_size=8, microbatches=3)
    (batch,) = train
    assert [samples for _, samples in batch.split()] == [3, 3, 2]


@pytest.mark.parametrize(
    ("dataset", "options", "told"),
    [
        (Squares(0), {"global_batch_size": 4}, "not one step"),
        (Squares(3), {"global_batch_size": 4, "remainder": "drop"}, "not one step"),
        (Squares(3), {"global_batch_size": 0}, "batch of 0"),
        (Squares(3), {"global_batch_size": 2, "num_workers": -1, "prefetch": 0}, "num_workers=-1.*prefetch=0"),
        (Squares(3), {"global_batch_size": 2, "microbatches": 0}, "microbatches=0"),
    ],
)
def test_impossible_loaders_are_refused(dataset, options, told):
    with pytest.raises(ConfigError, match=told):
        loader(job(), dataset, **options)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    ("dataset", "told"),
    [(Endless(), "stream_loader"), (iter([1]), "stream_loader"), (DataLoader([1, 2]), "wrap_dataloader")],
)
def test_what_has_no_random_access_is_sent_elsewhere(dataset, told):
    with pytest.raises(ConfigError, match=told):
        loader(job(), dataset, global_batch_size=1)
    with pytest.raises(ConfigError, match=told):
        evaluation_loader(job(), dataset, batch_size=1)


def test_a_sampler_of_another_data_set_is_refused():
    with pytest.raises(ConfigError, match="3 samples, its sampler 4"):
        Loader(Squares(3), Sampler(4, seed=0, global_batch_size=1, rank=0, size=1))


def test_pinning_without_a_gpu_is_a_warning(caplog, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    loader(job(), Squares(3), global_batch_size=2, pin_memory=True)
    assert "pin_memory" in caplog.text


@pytest.mark.parametrize(("n", "size"), [(0, 2), (1, 3), (10, 3), (17, 4)])
def test_an_evaluation_gives_each_sample_once_and_again_each_time(n, size):
    ranks = [evaluation_loader(job(rank, size), Squares(n), batch_size=3) for rank in range(size)]
    for _ in range(2):
        seen = [batch.indices.tolist() for rank in ranks for batch in rank]
        assert list(chain.from_iterable(seen)) == list(range(n))
        assert all(0 < len(batch) <= 3 for batch in seen)
    assert all(batch.global_samples == batch.samples for rank in ranks for batch in rank)
    assert sum(map(len, ranks)) == len(seen)
