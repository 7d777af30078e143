"""What `hvdtrain.collectives` promises, on however many ranks this session has."""

import pytest
import torch

from hvdtrain.errors import ConfigError, RootFailed

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (5, 7)], ids=str)
def test_broadcast_gives_roots_values_in_the_same_shape_and_dtype(run, dtype, shape):
    values = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(11)).to(dtype)
    mine = values if run.topology.is_root else torch.zeros(shape, dtype=dtype)
    got = run.collectives.broadcast(mine)
    assert got.dtype == dtype
    assert got.shape == values.shape
    assert torch.equal(got, values)
    assert got.data_ptr() != mine.data_ptr() or got.numel() == 0


def test_broadcast_reads_a_transposed_tensor_by_its_own_order(run):
    values = torch.arange(12.0).reshape(3, 4).T
    got = run.collectives.broadcast(values if run.topology.is_root else torch.zeros(4, 3))
    assert torch.equal(got, torch.arange(12.0).reshape(3, 4).T)


def test_broadcast_reads_a_single_element_of_any_stride(run):
    got = run.collectives.broadcast(torch.arange(4.0)[::4] + 3 if run.topology.is_root else torch.zeros(4)[::4])
    assert got.tolist() == [3]
    mine = torch.tensor([5.0, 6.0])[1::2] if run.topology.is_root else torch.zeros(2)[1::2]
    assert run.collectives.broadcast(mine).tolist() == [6]


def test_broadcast_keeps_the_bits_of_what_is_not_a_number(run):
    pattern = torch.tensor([0x7FC01234, -1, 0x7F800000], dtype=torch.int32)
    mine = pattern.view(torch.float32) if run.topology.is_root else torch.zeros(3)
    assert torch.equal(run.collectives.broadcast(mine).view(torch.int32), pattern)


@pytest.mark.parametrize("shape", [(), (0,), (4,), (2, 3)], ids=str)
def test_allreduce_sum_adds_over_ranks_and_leaves_its_argument(run, shape):
    mine = torch.full(shape, float(run.topology.rank + 1))
    total = run.collectives.allreduce_sum(mine)
    assert torch.equal(total, torch.full(shape, float(sum(range(1, run.topology.size + 1)))))
    assert torch.equal(mine, torch.full(shape, float(run.topology.rank + 1)))


def test_gather_json_gives_every_value_in_rank_order_on_every_rank(run):
    def value_of(rank):
        return {"rank": rank, "text": "größer " * rank, "list": list(range(100 * rank)), "none": None}

    got = run.collectives.gather_json(value_of(run.topology.rank))
    assert got == [value_of(rank) for rank in range(run.topology.size)]


def test_broadcast_json_reads_roots_value_alone(run):
    mine = {"from": run.topology.rank, "long": "x" * 5000} if run.topology.is_root else None
    assert run.collectives.broadcast_json(mine) == {"from": 0, "long": "x" * 5000}


def test_on_root_runs_once_and_gives_every_rank_the_value(run):
    calls = []
    value = run.collectives.on_root(lambda: calls.append(1) or ["a", {"b": 2}])
    counts = run.collectives.gather_json(len(calls))
    assert value == ["a", {"b": 2}]
    assert counts == [1] + [0] * (run.topology.size - 1)


def test_on_root_raises_an_error_of_ours_as_itself_on_every_rank(run):
    def refuse():
        raise ConfigError("train for -1 steps", found="train.steps is -1", remedy="--train.steps 10")

    with pytest.raises(ConfigError, match="train for -1 steps") as caught:
        run.collectives.on_root(refuse)
    assert caught.value.remedy == "--train.steps 10"


def test_on_root_tells_the_others_where_a_foreign_error_came_from(run, tmp_path):
    with pytest.raises(FileNotFoundError if run.topology.is_root else RootFailed) as caught:
        run.collectives.on_root((tmp_path / "missing").read_text)
    assert "missing" in str(caught.value)
    assert run.topology.is_root or "FileNotFoundError" in caught.value.found


def test_on_root_refuses_a_value_that_is_not_json_on_every_rank(run):
    with pytest.raises(TypeError if run.topology.is_root else RootFailed):
        run.collectives.on_root(lambda: {1, 2})


def test_collectives_go_on_after_an_error(run):
    with pytest.raises((ZeroDivisionError, RootFailed)):
        run.collectives.on_root(lambda: 1 // 0)
    run.collectives.barrier()
    assert run.collectives.gather_json(run.topology.rank) == list(range(run.topology.size))
