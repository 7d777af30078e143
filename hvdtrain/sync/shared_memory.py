"""A two-level all-reduce for CPU nodes: in shared memory on each host, over MPI between hosts.

Gradients lie in a window that the ranks of a host share. When a bucket is complete on all of them, each rank adds up
its lane of it, over the ranks in their order; lanes go across hosts, all at once, and are added in the order of hosts;
and the sums are put in place of every rank's gradients. Who adds what in which order depends neither on timing nor on
the choice of buckets.

    exchange = SharedMemoryExchange(run, optimizer, bucket_bytes=8 * 2**20)
    exchange.watch(trainable_parameters, signal_numel=32)
    exchange.arm(last=True)
    loss.backward()                                # a thread exchanges buckets as they become complete
    summed = exchange.finish(signal)               # every .grad is the sum over ranks, and this rank's own to change
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, count, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from hvdtrain.errors import UsageError
from hvdtrain.runtime import Run
from hvdtrain.sync.buckets import buckets
from hvdtrain.sync.clipping import total_norm
from hvdtrain.sync.contract import Reduction, Stateless
from hvdtrain.sync.window import ALIGNMENT, Hosts, Window, aligned, refuse_impossible_window

HALVES = (torch.float16, torch.bfloat16)  # summed in fp32
PIECE = 2**16  # elements that are added up and repeated at once: fits a core's own cache


@dataclass(eq=False)
class Bucket:
    """A piece of the window that is exchanged at once: gradients of one dtype, one behind the other.

    Attributes:
        parameters: whose gradients.
        rows: the piece in each local rank's segment, of shape (numel,).
        views: this rank's gradients in the piece, one for each parameter.
        gradients: all of them in one, with zeros between them, of shape (numel,) or a little less.
        norms: of the sums in each local rank's lane, each of shape (1,), fp64.
        missing: the positions of parameters whose gradient has not come yet in this step.
    """

    parameters: list[Parameter]
    rows: list[Tensor]
    views: list[Tensor]
    gradients: Tensor
    norms: list[Tensor]
    missing: set[int] = field(default_factory=set)


class SharedMemoryExchange(Stateless):
    """Sums over ranks through shared windows and MPI; see the module and `hvdtrain.sync.contract.Exchange`.

    Args:
        run: of this rank; its ranks must be on CPUs and under MPI.
        optimizer: the model's.
        bucket_bytes: size of what is exchanged at once.
        reduction: what the optimizer is to see of the sums.
    """

    def __init__(
        self, run: Run, optimizer: torch.optim.Optimizer, *, bucket_bytes: int, reduction: Reduction = "mean"
    ) -> None:
        self.reduction: Reduction = reduction
        self._run, self._optimizer, self._bucket_bytes = run, optimizer, bucket_bytes
        self._hosts: Hosts | None = None
        self._window: Window | None = None
        self._buckets: list[Bucket] = []
        self.flat: list[Tensor] = []
        self.flat_norm: float | None = None
        self._signal = torch.zeros(0)
        self._hooks: list[Any] = []
        self._armed = False
        self._sent: list[Future[None]] = []
        self._thread = ThreadPoolExecutor(1, "hvdtrain-exchange")

    def watch(self, parameters: Mapping[str, Parameter], signal_numel: int) -> None:
        """Collective: allocate the window for these gradients; what was watched before is let go.

        Raises:
            UsageError: no such window is possible; on every rank.
        """
        self._let_go()
        groups: list[list[Tensor]] = [list(g) for g in buckets(list(parameters.values()), self._bucket_bytes)]
        carrier = torch.zeros(signal_numel)
        if groups and groups[-1][-1].dtype == carrier.dtype:
            groups[-1].append(carrier)  # in the bucket that is complete last anyway
        else:
            groups.append([carrier])
        local_size = self._run.topology.local_size
        refuse_impossible_window(
            self._run.collectives,
            controller=self._run.controller,
            device=next(iter(parameters.values()), carrier).device,
            nbytes=sum(map(_group_bytes, groups)) * local_size,
        )
        self._allocate(groups, carrier)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._arrived, bucket, position))  # type: ignore[no-untyped-call]
            for bucket in self._buckets[:-1]  # the last one waits for the signal anyway
            for position, parameter in enumerate(bucket.parameters)
        ]
        self.flat = [bucket.gradients for bucket in self._buckets]

    def _allocate(self, groups: Sequence[Sequence[Tensor]], carrier: Tensor) -> None:
        from mpi4py import MPI

        self._hosts = self._hosts or Hosts(MPI.COMM_WORLD)
        sizes = [_group_bytes(group) for group in groups]
        self._window = Window(self._hosts.local, sum(sizes))
        for group, size, stop in zip(groups, sizes, accumulate(sizes), strict=True):
            pieces = [self._window.segment(rank)[stop - size : stop] for rank in range(self._hosts.local.size)]
            rows = [piece[:-ALIGNMENT].view(group[0].dtype) for piece in pieces]
            norms = [piece[-ALIGNMENT:].view(torch.float64)[:1] for piece in pieces]
            self._buckets.append(self._bucket(group, rows, norms, carrier))

    def _bucket(self, group: Sequence[Tensor], rows: list[Tensor], norms: list[Tensor], carrier: Tensor) -> Bucket:
        """A group's gradients, one behind the other, in its piece of the window."""
        assert self._hosts is not None
        own = rows[self._hosts.local.rank]
        parameters: list[Parameter] = []
        views: list[Tensor] = []
        place = stop = 0
        for tensor in group:
            view = own[place : place + tensor.numel()].view(tensor.shape)
            place += _padded(tensor)
            if tensor is carrier:
                self._signal = view
            else:
                assert isinstance(tensor, Parameter)
                parameters.append(tensor)
                views.append(view)
                stop = place
        return Bucket(parameters, rows, views, own[:stop], norms)

    def arm(self, *, last: bool) -> None:
        """Let hooks send buckets in the coming backward pass only if it is the last of the step."""
        if last and not self._armed:
            for bucket in self._buckets[:-1]:
                bucket.missing.update(range(len(bucket.parameters)))
        self._armed = last

    def _arrived(self, bucket: Bucket, position: int, parameter: Parameter) -> None:
        """After backward has accumulated a gradient: send what is complete."""
        if not self._armed:
            return
        if position not in bucket.missing:
            _refuse_second_arrival()
        bucket.missing.remove(position)
        if not bucket.missing:
            self._send_complete()

    def _send_complete(self) -> None:
        """Send buckets in their order, which is the same on all ranks; the last one also waits for the signal."""
        for bucket in self._buckets[len(self._sent) : -1]:
            if bucket.missing:
                return
            self._send(bucket)

    def _send(self, bucket: Bucket) -> None:
        _move(bucket)
        self._sent.append(self._thread.submit(self._exchange, bucket))

    def finish(self, signal: Tensor, samples: int) -> Tensor:
        """Collective: send what is left, with zeros for missing gradients, and wait for all sums."""
        last = self._buckets[-1]
        for bucket in self._buckets[len(self._sent) : -1]:
            self._send(bucket)
        _move(last)
        self._signal.copy_(signal)
        for future in self._sent:
            future.result()
        self._exchange(last)
        for bucket in self._buckets:
            bucket.missing.clear()
        self._sent, self._armed = [], False
        self.flat_norm = math.hypot(*(norm.item() for bucket in self._buckets for norm in bucket.norms))
        return self._signal.clone()

    def _exchange(self, bucket: Bucket) -> None:
        """Collective: make this rank's part of the bucket the sum over all ranks."""
        assert self._window is not None
        assert self._hosts is not None
        self._window.meet()  # all gradients are there; from here on each lane is its owner's alone, in all rows
        if self._hosts.cross is not None:
            _add_lane(bucket, self._hosts)
        self._window.meet()

    def step(self) -> None:
        """One step of the model's optimizer."""
        self._optimizer.step()

    def _let_go(self) -> None:
        for hook in self._hooks:
            hook.remove()
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.grad = None
        self._hooks, self._buckets, self.flat, self._signal = [], [], [], torch.zeros(0)
        if self._window is not None:
            self._window.free()
            self._window = None

    def close(self) -> None:
        """Collective: take hooks and gradients off the parameters, and free the window and the communicators."""
        self._let_go()
        self._thread.shutdown()
        if self._hosts is not None:
            self._hosts.free()
            self._hosts = None


def _add_lane(bucket: Bucket, hosts: Hosts) -> None:
    """Collective: sum this rank's lane over all ranks, for all ranks of the host, and take the 2-norm of the sums."""
    numel, lane = len(bucket.rows[0]), hosts.local.rank
    own = slice(numel * lane // hosts.lanes, numel * (lane + 1) // hosts.lanes)
    lanes = [row[own] for row in bucket.rows]
    if hosts.hosts > 1:
        add_rows(lanes)
        add_across_hosts(lanes[0], hosts.cross)
    gradients = len(bucket.gradients) - own.start  # the signal comes after them, and is none
    norms = []
    cuts = (torch.split(row, PIECE) for row in lanes)
    for start, pieces in zip(count(0, PIECE), zip(*cuts, strict=True), strict=False):
        if hosts.hosts == 1:
            add_rows(pieces)
        norms.append(total_norm([pieces[0][: max(0, gradients - start)]]))
        repeat(pieces)  # all while they are in a cache
    bucket.norms[lane].fill_(math.hypot(*norms))


def _move(bucket: Bucket) -> None:
    """Have this rank's gradients lie in the window, with zeros for those that there are none of."""
    places, gradients = [], []
    for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
        gradient = parameter.grad
        if gradient is None:
            view.zero_()
        elif gradient is not view:
            places.append(view)
            gradients.append(gradient)
        parameter.grad = view
    if places:
        torch._foreach_copy_(places, gradients)


def _padded(tensor: Tensor) -> int:
    """Elements that a gradient takes in the window."""
    return aligned(tensor.numel() * tensor.element_size()) // tensor.element_size()


def _group_bytes(group: Sequence[Tensor]) -> int:
    return sum(_padded(tensor) * tensor.element_size() for tensor in group) + ALIGNMENT  # for the norm


def _refuse_second_arrival() -> None:
    raise UsageError(
        "exchange gradients while backward goes on",
        found="backward came by a parameter twice: reentrant checkpointing of a layer that is used twice, for instance",
        remedy="--sync.overlap false",
    )


def add_rows(rows: Sequence[Tensor]) -> None:
    """Make the first row the sum of all, each of shape (n,), in their order; halves are added in fp32."""
    first = rows[0]
    total = first.float() if first.dtype in HALVES else first
    for row in rows[1:]:
        total += row
    if total is not first:
        first.copy_(total)


def repeat(rows: Sequence[Tensor]) -> None:
    """Make all rows like the first."""
    for row in rows[1:]:
        row.copy_(rows[0])


def add_across_hosts(part: Tensor, cross: Any) -> None:
    """Collective: add the hosts' parts, of shape (n,), in the order of hosts, in place.

    Every host adds up one piece and gives it to the others: 2 (hosts - 1) / hosts of the bytes leave each host, as in
    a ring; but whose number is added to whose does not depend on where the pieces are cut.
    """
    hosts, rank = cross.size, cross.rank
    cuts = [len(part) * host // hosts for host in range(hosts + 1)]
    counts = [(stop - start) * part.element_size() for start, stop in pairwise(cuts)]
    starts = [cut * part.element_size() for cut in cuts[:-1]]
    own = cuts[rank + 1] - cuts[rank]
    pieces = torch.empty(hosts, own, dtype=part.dtype)  # (hosts, elements of this host's piece)
    whole = _bytes(part)
    cross.Alltoallv([whole, counts, starts, "B"], [_bytes(pieces), [counts[rank]] * hosts, None, "B"])
    add_rows(list(pieces))
    cross.Allgatherv([_bytes(pieces[0]), counts[rank], "B"], [whole, counts, starts, "B"])


def _bytes(tensor: Tensor) -> Any:
    return tensor.view(-1).view(torch.uint8).numpy()
