"""The asynchronous parameter server: no rank waits for another, beyond a bound on how far they may be apart.

Each server has a thread that takes gradients as they come, updates what it owns at once, and answers with its newest
parameters, as soon as the slowest rank is at most `staleness` steps behind the asker. The thread works on copies, so
parameters do not change under a forward pass. Every rank, a server without data too, counts steps, and all stop at one.

    exchange = AsynchronousExchange(run, optimizer, servers=0, staleness=2, name="model")
    exchange.finish(signal, samples)                           # nothing is sent yet; what is known is this rank's own
    exchange.step()                                            # its gradient goes out, newer parameters come in
    exchange.report()                                          # {"updates": 400, "mean": 1.6, "largest": 3, ...}

A gradient counts as one of `size` equal shares, so lr means what it means elsewhere. Results differ from run to run.

Source: Recht et al., Hogwild (2011); Ho et al., Stale Synchronous Parallel parameter server (2013).
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from hvdtrain.errors import UsageError
from hvdtrain.runtime import Run
from hvdtrain.sync.contract import Reduction, Stateless
from hvdtrain.sync.parameter_server import refuse_impossible_servers, servers_of
from hvdtrain.sync.shards import Shards, pack, twins_of, unpack
from hvdtrain.sync.signal import FIELDS

PUSH, GRADIENT, ANSWER, PARAMETERS = range(11, 15)  # tags
NEVER = 2.0**53  # a step that is not reached
_LOOK_S = 100e-6  # between looks for messages
_CLOCK, _VERSION, _HAS_GRADIENT, _STOP, _RATES = range(5)  # in a push; then a learning rate for each group, and
# for each parameter of the server whether it was used


class Server(threading.Thread):
    """One server's thread: its parameters, its part of the optimizer, and who is how far.

    Args:
        communicator: of mpi4py, for this exchange alone.
        optimizer: the model's; what the server steps is a copy of it.
        owned: this rank's parameters in it.
        staleness: steps that a rank may be ahead of the slowest one.
    """

    def __init__(
        self, communicator: Any, optimizer: torch.optim.Optimizer, owned: Mapping[str, Parameter], staleness: int
    ) -> None:
        super().__init__(name="hvdtrain-parameter-server", daemon=True)
        self._communicator, self._staleness = communicator, staleness
        self.optimizer: torch.optim.Optimizer = copy.deepcopy(optimizer)
        twins = twins_of(optimizer, self.optimizer)
        self.parameters = [twins[parameter] for parameter in owned.values()]
        self._gradient = pack(self.parameters)  # (owned elements,), where one arrives
        self._clocks = [0] * communicator.size  # steps that each rank has made
        self._asking: dict[int, int] = {}  # the clock of each rank that waits for an answer
        self._version, self._stop_at = 0, NEVER
        self._sent: dict[int, list[tuple[Any, Any]]] = {}  # requests and what must live until they are done, by rank
        self._closing = threading.Event()
        self.delays: list[int] = []  # of each gradient: updates between the pull that it is based on, and its own

    def run(self) -> None:
        """Serve until `close`."""
        from mpi4py import MPI

        status = MPI.Status()
        while not self._closing.is_set() and not MPI.Is_finalized():
            if self._communicator.Iprobe(source=MPI.ANY_SOURCE, tag=PUSH, status=status):
                self._take(status.Get_source())
                self._answer_whom_it_may()
            else:
                time.sleep(_LOOK_S)

    def _take(self, source: int) -> None:
        groups = len(self.optimizer.param_groups)
        push = np.empty(_RATES + groups + len(self.parameters))
        self._communicator.Recv(push, source=source, tag=PUSH)
        self._clocks[source] = int(push[_CLOCK])
        if push[_STOP] and self._stop_at == NEVER:
            self._stop_at = max(self._clocks) + 2  # whoever is that far learns of it at the end of the step in between
        if push[_HAS_GRADIENT]:
            self._communicator.Recv(self._gradient.numpy(), source=source, tag=GRADIENT)
            self.delays.append(self._version - int(push[_VERSION]))
            self._update(push[_RATES : _RATES + groups], push[_RATES + groups :])
        self._asking[source] = int(push[_CLOCK])

    def _update(self, rates: Any, used: Any) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = float(rate)
        for parameter in self.parameters:
            parameter.grad = torch.empty_like(parameter)
        unpack(self._gradient, [p.grad for p in self.parameters if p.grad is not None])
        for parameter, was_used in zip(self.parameters, used, strict=True):
            if not was_used:
                parameter.grad = None
        self.optimizer.step()
        self._version += 1

    def _answer_whom_it_may(self) -> None:
        slowest = min(self._clocks)
        for rank in [rank for rank, clock in self._asking.items() if clock - slowest <= self._staleness]:
            del self._asking[rank]
            self._answer(rank, [self._version, self._stop_at, slowest])

    def _answer(self, rank: int, figures: list[float]) -> None:
        """Send without waiting: who asked may still be sending to another server, whose turn must come."""
        for request, _ in self._sent.pop(rank, []):
            request.Wait()  # is done: the rank has asked again since
        messages = [(np.array(figures, dtype=np.float64), ANSWER)]
        if self.parameters:
            messages.append((pack(self.parameters).numpy(), PARAMETERS))
        self._sent[rank] = [(self._communicator.Isend(data, dest=rank, tag=tag), data) for data, tag in messages]

    def close(self) -> None:
        """End the thread; nobody may be waiting for an answer."""
        self._closing.set()
        self.join()
        for request, _ in [pair for pairs in self._sent.values() for pair in pairs]:
            request.Wait()


class AsynchronousExchange(Stateless):
    """Updates by servers that wait for nobody; see the module and `hvdtrain.sync.contract.Exchange`.

    Args:
        run: of this rank.
        optimizer: the model's.
        servers: ranks of their own, the last ones; 0: every rank is one, beside its worker.
        staleness: steps that a rank may be ahead of the slowest one; with 0 all wait for each other.
    """

    reduction: Reduction = "mean"
    equal_gradients = False
    replicated = False
    lockstep = False
    norm: Callable[[float], float] | None = None  # each rank limits its own gradient

    def __init__(self, run: Run, optimizer: torch.optim.Optimizer, *, servers: int, staleness: int) -> None:
        from mpi4py import MPI

        refuse_impossible_servers(run, servers)
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise UsageError(
                "train with an asynchronous parameter server",
                found="this MPI was started without MPI_THREAD_MULTIPLE, which a server's thread needs",
                remedy="--sync.asynchronous false",
                agreed=True,
            )
        self._run, self._optimizer, self._staleness = run, optimizer, staleness
        self._ranks = servers_of(run.topology.size, 0 if run.topology.size == 1 else servers)
        self._communicator: Any = MPI.COMM_WORLD.Dup()  # of servers and those who ask them
        self._together: Any = MPI.COMM_WORLD.Dup()  # of all ranks at once
        self._parameters: dict[str, Parameter] = {}
        self._shards: Shards | None = None
        self._server: Server | None = None
        self._versions = dict.fromkeys(self._ranks, 0.0)
        self._clock, self._stop_at, self._stop = 0, NEVER, False
        self._delays: list[int] = []

    @property
    def shards(self) -> Shards:
        """The division in force."""
        assert self._shards is not None, "watch comes first"
        return self._shards

    def watch(self, parameters: Mapping[str, Parameter], signal_numel: int) -> None:
        """Collective: divide these parameters anew, and start this rank's server."""
        self._stop_serving()
        self._parameters = dict(parameters)
        self._shards = Shards(self._together, parameters, self._ranks)
        self._start_serving()

    def _start_serving(self) -> None:
        self._together.Barrier()  # every earlier server is gone
        self._clock, self._versions = 0, dict.fromkeys(self._ranks, 0.0)
        if self._run.topology.rank in self._ranks:
            self._server = Server(self._communicator, self._optimizer, self.shards.owned, self._staleness)
            self._server.start()

    def _stop_serving(self) -> None:
        """Collective: bring parameters and state into the model's own, and end the servers."""
        if self._shards is None:
            return
        self._gather()
        if self._server is not None:
            self._delays += self._server.delays
            self._server.close()
            self._server = None

    def arm(self, *, last: bool) -> None:
        """Nothing is sent before `step`."""

    def finish(self, signal: Tensor, samples: int) -> Tensor:
        """What this rank knows is its own signal: it takes the others' to be alike, and the stop to be the servers'."""
        table = len(signal) - len(self._parameters)  # numbers in front of the users of each parameter
        size, rank = self._run.topology.size, self._run.topology.rank
        workers = size - len(self._ranks) or size
        row = signal[:table].view(size, -1)[rank].clone()  # (columns,)
        self._stop = bool(row[FIELDS.index("stop")])
        if not samples:  # no step will follow, but the others must not wait for this rank
            self._push(has_gradient=False)
        row[FIELDS.index("stop")] = float(self._clock + (samples > 0) >= self._stop_at)
        rows = row.repeat(size, 1)  # (size, columns)
        rows[workers:, FIELDS.index("samples")] = 0  # servers of their own have none
        rows[workers:, FIELDS.index("loss")] = 0
        rows[workers:, len(FIELDS) :] = 0
        return torch.cat([rows.reshape(-1), signal[table:]])

    def step(self) -> None:
        """Send this rank's gradient, limited and divided already, and take newer parameters."""
        self._push(has_gradient=True)

    def _push(self, *, has_gradient: bool) -> None:
        self._clock += 1
        rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        for server in self._ranks:
            names = self.shards.of(server)
            sends = has_gradient and bool(names)
            used = [parameter.grad is not None for parameter in names.values()]
            stop = self._stop and server == self._ranks[0]  # one server decides when
            header = [self._clock, self._versions[server], sends, stop, *rates, *used]
            self._communicator.Send(np.array(header, dtype=np.float64), dest=server, tag=PUSH)
            if sends:
                row = pack([torch.zeros_like(p) if p.grad is None else p.grad for p in names.values()])
                self._communicator.Send(row.numpy(), dest=server, tag=GRADIENT)
        with self._run.phases.waiting():
            for server in self._ranks:
                self._take_answer(server)

    def _take_answer(self, server: int) -> None:
        while not self._communicator.Iprobe(source=server, tag=ANSWER):
            time.sleep(_LOOK_S)
        answer = np.empty(3)
        self._communicator.Recv(answer, source=server, tag=ANSWER)
        self._versions[server] = float(answer[0])
        self._stop_at = min(self._stop_at, float(answer[1]))
        parameters = list(self.shards.of(server).values())
        if parameters:
            row = pack(parameters)
            self._communicator.Recv(row.numpy(), source=server, tag=PARAMETERS)
            unpack(row, parameters)

    def _gather(self) -> None:
        """Collective: all ranks have made the same steps; give everyone the servers' parameters and state."""
        self._together.Barrier()  # every push was answered, so every server is idle
        if self._server is not None:
            for parameter, served in zip(self.shards.owned.values(), self._server.parameters, strict=True):
                parameter.data.copy_(served)
        self.shards.publish()
        self.shards.collect_state(self._optimizer, self._server.optimizer if self._server else None)

    def settled(self) -> AbstractContextManager[None]:
        """Collective: all ranks have the servers' parameters from here on, and the optimizer's whole state."""
        if self._shards is not None:
            self._gather()
        return nullcontext()

    def settle(self) -> None:
        """Collective: as `settled`; the servers end, and root says how stale gradients were."""
        self._stop_serving()
        self._shards = None
        figures = self.report()
        if figures["updates"]:
            self._run.log.info("stale gradients: %s", ", ".join(f"{name} {value}" for name, value in figures.items()))

    def report(self) -> dict[str, float]:
        """How stale the gradients were that this rank's server took: updates that they did not know of."""
        delays = self._delays + (self._server.delays if self._server else [])
        mean = sum(delays) / len(delays) if delays else 0.0
        return {"updates": len(delays), "mean": round(mean, 3), "largest": max(delays, default=0)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Collective: begin serving anew, with what the model and the optimizer hold now."""
        self._together.Barrier()  # every push was answered, so every server is idle
        if self._server is not None:
            self._server.close()
            self._server = None
        self._start_serving()

    def close(self) -> None:
        """Collective: end the servers and let go of the communicators."""
        self._stop_serving()
        self._shards = None
        if self._communicator is not None:
            self._together.Barrier()
            self._communicator.Free()
            self._together.Free()
            self._communicator = self._together = None
