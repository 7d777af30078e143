"""The parameter server: workers send gradients to the owners of parameters, who update them and send them back.

It is what all-reduce replaced: a server's link carries the gradients of all workers. Servers are ranks of their own,
the last ones, or live beside the workers. This is the synchronous form, equal to the all-reduce; gradients are added in
the order of ranks. `asynchronous_server` has the other one.

    exchange = ParameterServerExchange(run, optimizer, servers=1)
    data_run = job_of_workers(run, servers=1)                  # by which data is dealt out: a server gets none
    exchange.finish(signal, samples)                           # owners have the sums, others no gradient
    exchange.step()                                            # owners update; everyone has the new parameters
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from hvdtrain.errors import UsageError
from hvdtrain.runtime import Run
from hvdtrain.sync.contract import Reduction, Stateless
from hvdtrain.sync.shards import Shards, pack, unpack

GRADIENT_TAG = 1


def servers_of(size: int, servers: int) -> tuple[int, ...]:
    """The ranks that own parameters: the last ones, or all where servers live beside workers (0)."""
    return tuple(range(size - servers, size)) if servers else tuple(range(size))


def refuse_impossible_servers(run: Run, servers: int) -> None:
    """Refuse what leaves no worker, or has no MPI to send by.

    Raises:
        UsageError: with the reason.
    """
    fault, remedy = "", f"-np {servers + 2}"
    if run.controller != "mpi":
        fault, remedy = "Horovod runs on Gloo here, and the servers speak MPI", "start with mpirun or srun --mpi=pmix"
    elif run.topology.size > 1 and servers >= run.topology.size:
        fault = f"{servers} of {run.topology.size} ranks would be servers, which leaves no worker"
    if fault:
        raise UsageError("train with a parameter server", found=fault, remedy=remedy, agreed=True)


def job_of_workers(run: Run, servers: int) -> Run:
    """The run as its data sees it: the workers are all there is, and a server has a share of nothing."""
    if not servers or run.topology.size == 1:
        return run
    workers = run.topology.size - servers
    if run.topology.rank < workers:
        return replace(run, topology=replace(run.topology, size=workers))
    nobody = 2**31  # the last of so many ranks gets nothing of any batch
    return replace(run, topology=replace(run.topology, rank=nobody - 1, size=nobody))


class ParameterServerExchange(Stateless):
    """Synchronous updates by the owners of parameters; see the module and `hvdtrain.sync.contract.Exchange`.

    Args:
        run: of this rank.
        optimizer: the model's; each rank's steps the parameters that the rank owns.
        servers: ranks of their own, the last ones; 0: every rank is one, beside its worker.
        reduction: what the optimizer is to see of the sums.
    """

    equal_gradients = False
    replicated = False  # each owner has its part of the optimizer's state

    def __init__(
        self, run: Run, optimizer: torch.optim.Optimizer, *, servers: int, reduction: Reduction = "mean"
    ) -> None:
        from mpi4py import MPI

        refuse_impossible_servers(run, servers)
        self.reduction: Reduction = reduction
        self._run, self._optimizer = run, optimizer
        self._servers = servers_of(run.topology.size, 0 if run.topology.size == 1 else servers)
        self._communicator: Any = MPI.COMM_WORLD.Dup()
        self._parameters: dict[str, Parameter] = {}
        self._shards: Shards | None = None

    @property
    def shards(self) -> Shards:
        """The division in force."""
        assert self._shards is not None, "watch comes first"
        return self._shards

    def watch(self, parameters: Mapping[str, Parameter], signal_numel: int) -> None:
        """Collective: divide these parameters; the state of those that had an owner goes along."""
        if self._shards is not None:
            self._shards.collect_state(self._optimizer)
        self._parameters = dict(parameters)
        self._shards = Shards(self._communicator, parameters, self._servers)

    def arm(self, *, last: bool) -> None:
        """Nothing is sent before `finish`."""

    def finish(self, signal: Tensor, samples: int) -> Tensor:
        """Collective: send every owner this rank's gradients; the owners add them in the order of ranks."""
        for parameter in self._parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        rows = {server: self._gradients_of(server) for server in self._servers}
        me = self._communicator.rank
        sent = [
            self._communicator.Isend(row.numpy(), dest=server, tag=GRADIENT_TAG)
            for server, row in rows.items()
            if server != me and row.numel()
        ]
        if me in rows and rows[me].numel():
            self._install(self._summed(rows[me]))
        for request in sent:
            request.Wait()
        for name, parameter in self._parameters.items():
            if name not in self.shards.owned:
                parameter.grad = None
        summed = signal.clone()  # every column is one rank's, or counts: exact in any order
        self._communicator.Allreduce(signal.numpy(), summed.numpy())
        return summed

    def _gradients_of(self, server: int) -> Tensor:
        return pack([p.grad for p in self.shards.of(server).values() if p.grad is not None])

    def _summed(self, own: Tensor) -> Tensor:
        """Collective: the ranks' rows, added in their order; every rank has sent one."""
        total, received = torch.zeros_like(own), torch.empty_like(own)
        for rank in range(self._communicator.size):
            if rank == self._communicator.rank:
                total += own
            else:
                self._communicator.Recv(received.numpy(), source=rank, tag=GRADIENT_TAG)
                total += received
        return total

    def _install(self, row: Tensor) -> None:
        unpack(row, [p.grad for p in self.shards.owned.values() if p.grad is not None])

    def norm(self, own: float) -> float:
        """Collective: the 2-norm over all owners' gradients, from that of this rank's."""
        squares = np.empty(self._communicator.size)
        self._communicator.Allgather(np.array([own * own]), squares)
        return float(np.sqrt(squares.cumsum()[-1]))

    def step(self) -> None:
        """Collective: the owners' step, and their new parameters on every rank."""
        self._optimizer.step()
        with self._run.phases.waiting():
            self.shards.publish()

    def settled(self) -> AbstractContextManager[None]:
        """Collective: parameters are equal already; bring the optimizer's state together, for root to save it."""
        self.shards.collect_state(self._optimizer)
        return nullcontext()

    def close(self) -> None:
        """Collective: let go of the communicator."""
        if self._shards is not None:
            self._shards.collect_state(self._optimizer)
            self._shards = None
            self._communicator.Free()
