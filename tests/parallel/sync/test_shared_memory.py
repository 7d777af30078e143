"""The two-level exchange: several hosts, several dtypes, sums that do not depend on buckets, and what is refused."""

import math

import pytest
import torch
from mpi4py import MPI
from test_traps import sgd, step_on
from torch import nn

from hvdtrain.config import SyncConfig
from hvdtrain.errors import UsageError
from hvdtrain.statetree import digest
from hvdtrain.sync import prepare
from hvdtrain.sync.clipping import total_norm
from hvdtrain.sync.shared_memory import PIECE, SharedMemoryExchange, add_across_hosts, add_rows
from hvdtrain.sync.window import Hosts, Window, refuse_impossible_window


class PretendedHosts(Hosts):
    """Hosts of so many ranks each, on one machine."""

    def __init__(self, world, ranks_per_host):
        host = next(h for h, stop in enumerate(cumulated(ranks_per_host)) if world.rank < stop)
        self.local = world.Split(host, world.rank)
        self.hosts, self.lanes = len(ranks_per_host), min(ranks_per_host)
        lane = self.local.rank if self.local.rank < self.lanes else MPI.UNDEFINED
        cross = world.Split(lane, host)
        self.cross = None if cross == MPI.COMM_NULL else cross


def cumulated(counts):
    return [sum(counts[: index + 1]) for index in range(len(counts))]


LAYOUTS = {1: [[1]], 2: [[2], [1, 1]], 3: [[3], [2, 1], [1, 1, 1]], 4: [[4], [2, 2], [3, 1], [1, 1, 1, 1]]}


def random_model(dtype):
    torch.manual_seed(3)
    return nn.ParameterList([torch.randn(n).to(dtype) for n in (1, 70, 3, 1000, 16)])


def summed(run, dtype, bucket_bytes, hosts, monkeypatch):
    """What every parameter's gradient is after one exchange of random numbers."""
    monkeypatch.setattr("hvdtrain.sync.shared_memory.Hosts", lambda world: PretendedHosts(world, hosts))
    model = random_model(dtype)
    exchange = SharedMemoryExchange(run, sgd(model.parameters()), bucket_bytes=bucket_bytes)
    exchange.watch(dict(model.named_parameters()), 5)
    generator = torch.Generator().manual_seed(run.topology.rank)
    for p in model:
        p.grad = torch.randn(p.shape, generator=generator).to(dtype)
    signal = exchange.finish(torch.full((5,), float(run.topology.rank + 1)), 1)
    assert exchange.flat_norm == pytest.approx(torch.cat([p.grad.double() for p in model]).norm().item(), rel=1e-5)
    result = {name: p.grad.clone() for name, p in model.named_parameters()} | {"signal": signal}
    exchange.close()
    return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layout", range(4))
def test_sums_over_hosts_are_right_and_do_not_depend_on_buckets(run, dtype, layout, monkeypatch):
    layouts = LAYOUTS[run.topology.size]
    if layout >= len(layouts):
        pytest.skip(f"{run.topology.size} ranks make {len(layouts)} layouts of hosts")
    results = [summed(run, dtype, size, layouts[layout], monkeypatch) for size in (1, 300, 2**20)]
    assert len({digest(result) for result in results}) == 1
    assert len(set(run.collectives.gather_json(digest(results[0])))) == 1
    assert results[0]["signal"].tolist() == [sum(range(run.topology.size + 1))] * 5
    generators = [torch.Generator().manual_seed(rank) for rank in range(run.topology.size)]
    for name, p in random_model(dtype).named_parameters():
        parts = [torch.randn(p.shape, generator=generator).to(dtype).double() for generator in generators]
        tolerance = 1e-6 if dtype in (torch.float32, torch.float64) else 0.05
        assert torch.allclose(results[0][name].double(), sum(parts), atol=tolerance), name


def test_rows_are_added_in_their_order():
    def added(*numbers):
        rows = [torch.tensor([number]) for number in numbers]
        add_rows(rows)
        return rows[0].item()

    assert added(1e8, 1.0, -1e8) == 0.0  # (1e8 + 1) - 1e8 in fp32
    assert added(1e8, -1e8, 1.0) == 1.0


@pytest.mark.parametrize("numel", [0, 1, 3, 1000])
def test_adding_across_hosts_leaves_every_host_the_sum(run, numel):
    part = torch.arange(float(numel)) * (run.topology.rank + 1)
    add_across_hosts(part, MPI.COMM_WORLD)
    assert torch.equal(part, torch.arange(float(numel)) * sum(range(run.topology.size + 1)))


def test_a_window_shows_what_was_written_before_meeting(run):
    local = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    window = Window(local, 100)
    for turn in range(200):
        window.segment(local.rank).fill_((turn + local.rank) % 256)
        window.meet()
        seen = [int(window.segment(rank)[99]) for rank in range(local.size)]
        window.meet()
        assert seen == [(turn + rank) % 256 for rank in range(local.size)]
    window.free()
    local.Free()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"controller": "gloo"}, "only MPI has shared windows"),
        ({"device": torch.device("cuda", 0)}, "NCCL"),
        ({"nbytes": 2**60}, "MiB free and the window needs"),
    ],
)
def test_where_windows_are_impossible_all_ranks_say_why(run, settings, reason):
    usual = {"controller": "mpi", "device": torch.device("cpu"), "nbytes": 1}
    one = usual | settings if run.topology.rank == run.topology.size - 1 else usual
    with pytest.raises(UsageError, match=reason) as caught:
        refuse_impossible_window(run.collectives, **one)
    assert f"ranks [{run.topology.size - 1}]" in caught.value.found


def test_gradients_of_microbatches_accumulate_in_one_place(run):
    model = nn.Linear(4, 4)
    sync = prepare(run, model, sgd(model.parameters()), config=SyncConfig(strategy="shared_memory"))
    sync.backward(model(torch.ones(2, 4)).sum(), 2, last=False)
    place = model.weight.grad.data_ptr()
    sync.backward(model(torch.ones(2, 4)).sum(), 2)
    assert model.weight.grad.data_ptr() == place
    sync.update()
    sync.close()
    assert model.weight.grad is None


@pytest.mark.parametrize("bucket_bytes", [1, 300, 2**20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_flat_tensors_hold_the_gradients_and_zeros_besides(run, dtype, bucket_bytes):
    model = random_model(dtype)
    exchange = SharedMemoryExchange(run, sgd(model.parameters()), bucket_bytes=bucket_bytes)
    exchange.watch(dict(model.named_parameters()), 5)
    for missing in ((), (1, 4)):  # what a parameter had in the step before counts no more
        for index, p in enumerate(model):
            p.grad = None if index in missing else torch.full_like(p, 1.0 + index)
        exchange.finish(torch.full((5,), 7.0), 1)
        values = sorted(value for flat in exchange.flat for value in flat.tolist() if value)
        of_all = [value for p in model for value in p.grad.tolist()]
        assert values == sorted(value for value in of_all if value)
        assert len(values) == sum(p.numel() for index, p in enumerate(model) if index not in missing)
        assert exchange.flat_norm == pytest.approx(math.hypot(*of_all), rel=1e-6)
    for flat in exchange.flat:
        flat.mul_(2)
    assert sorted(value for p in model for value in p.grad.tolist()) == sorted(2 * value for value in of_all)
    exchange.close()
    assert not exchange.flat


def test_the_norm_is_taken_over_many_pieces_and_shows_what_is_not_finite(run):
    parameter = torch.nn.Parameter(torch.zeros(5 * PIECE // 2 + 3))
    exchange = SharedMemoryExchange(run, sgd([parameter]), bucket_bytes=2**30)
    exchange.watch({"weight": parameter}, 5)
    for last in (1.0, math.inf, math.nan):
        parameter.grad = torch.full_like(parameter, 0.5)
        parameter.grad[-1] = last
        exchange.finish(torch.full((5,), math.nan), 1)  # the signal does not count
        assert exchange.flat_norm == pytest.approx(total_norm([parameter.grad]), rel=1e-5, nan_ok=True)
    exchange.close()


def test_compression_is_refused_with_the_reason(run):
    model = nn.Linear(4, 4)
    config = SyncConfig(strategy="shared_memory", compression="fp16")
    with pytest.raises(UsageError, match="brings nothing on shared memory"):
        prepare(run, model, sgd(model.parameters()), config=config)


def test_memory_is_given_back_when_parameters_change(run):
    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3))
    sync = prepare(run, model, sgd(model.parameters()), config=SyncConfig(strategy="shared_memory"))
    for turn in range(6):
        model[0].requires_grad_(turn % 2 == 0)
        step_on(run, sync, model, turn)
    digests = run.collectives.gather_json(digest(model.state_dict()))
    sync.close()
    assert len(set(digests)) == 1
