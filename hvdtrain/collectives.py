"""Typed collectives over Horovod: tensors and JSON values, never pickles, so they work under MPI and Gloo alike.

Every method of `Collectives` is *Collective:* all ranks must call it, in the same order. What one rank alone did,
raised or read reaches the others through `on_root`, which gives every rank the value or the exception.

    text = collectives.on_root(lambda: path.read_text())           # one reader; a missing file raises on every rank
    hosts = collectives.gather_json(socket.gethostname())          # ["gpu01", "gpu01", "gpu02"], on every rank
    weight = collectives.broadcast(weight)                         # root's values
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from hvdtrain import errors
from hvdtrain.errors import HvdtrainError, RootFailed
from hvdtrain.phases import Phases
from hvdtrain.topology import ROOT, SOLO, Topology

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
T = TypeVar("T")


class Transport(Protocol):
    """What a communication library has to give: three operations on tensors, from which the rest is made."""

    topology: Topology

    def broadcast(self, tensor: Tensor, name: str) -> Tensor:
        """Root's values of `tensor`, in a new tensor; shape and dtype must be the same on all ranks."""

    def allgather(self, tensor: Tensor, name: str) -> Tensor:
        """The ranks' tensors joined along dimension 0, whose length may differ between ranks."""

    def allreduce_sum(self, tensor: Tensor, name: str) -> Tensor:
        """The elementwise sum over all ranks, in a new tensor."""


class SoloTransport:
    """A job of one rank without any communication library; also what unit tests use."""

    topology = SOLO

    def broadcast(self, tensor: Tensor, name: str) -> Tensor:
        """Collective: the tensor itself."""
        return tensor.clone()

    def allgather(self, tensor: Tensor, name: str) -> Tensor:
        """Collective: the tensor itself."""
        return tensor.clone()

    def allreduce_sum(self, tensor: Tensor, name: str) -> Tensor:
        """Collective: the tensor itself."""
        return tensor.clone()


class HorovodTransport:
    """The three operations through an initialised Horovod, on its MPI or Gloo controller."""

    def __init__(self, topology: Topology, phases: Phases | None = None) -> None:
        import horovod.torch as hvd

        self.topology = topology
        self._phases = phases or Phases()
        self._hvd = hvd

    def broadcast(self, tensor: Tensor, name: str) -> Tensor:
        """Collective: see `Transport`."""
        with self._phases.waiting():
            result: Tensor = self._hvd.broadcast(tensor, ROOT, name=name)
        return result

    def allgather(self, tensor: Tensor, name: str) -> Tensor:
        """Collective: see `Transport`."""
        with self._phases.waiting():
            result: Tensor = self._hvd.allgather(tensor, name=name)
        return result

    def allreduce_sum(self, tensor: Tensor, name: str) -> Tensor:
        """Collective: see `Transport`."""
        with self._phases.waiting():
            result: Tensor = self._hvd.allreduce(tensor, op=self._hvd.Sum, name=name)
        return result


class FromRank:
    """A transport whose root is another rank; only its broadcasts are to be used.

    The other ranks join nothing to what that rank sends, so a gathering is a broadcast.
    """

    def __init__(self, transport: Transport, source: int) -> None:
        own = transport.topology
        self._transport = transport
        self.topology = replace(own, rank=(own.rank - source) % own.size)

    def broadcast(self, tensor: Tensor, name: str) -> Tensor:
        """Collective: see `Transport`."""
        return self._transport.allgather(tensor if self.topology.is_root else tensor[:0], name)

    def allgather(self, tensor: Tensor, name: str) -> Tensor:
        """Collective: in the order of the real ranks."""
        return self._transport.allgather(tensor, name)

    def allreduce_sum(self, tensor: Tensor, name: str) -> Tensor:
        """Collective: see `Transport`."""
        return self._transport.allreduce_sum(tensor, name)


class Collectives:
    """The operations that hvdtrain's rooms use to agree; see the module's synopsis."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.topology = transport.topology

    def with_root(self, rank: int) -> Collectives:
        """The same ranks with another one as the source of broadcasts, for as long as the result is used."""
        return Collectives(FromRank(self._transport, rank))

    def broadcast(self, tensor: Tensor, name: str = "hvdtrain.broadcast") -> Tensor:
        """Collective: root's values of `tensor` on every rank, in a new tensor of the same shape, dtype and device.

        Zero-dimensional, empty and boolean tensors are allowed; the others' values are not read.
        """
        flat = tensor.detach().reshape(-1).contiguous()
        if flat.numel() == 0 or self.topology.size == 1:
            return tensor.detach().clone()
        if flat.numel() == 1:
            flat = flat.as_strided((1,), (1,))  # contiguous by any stride, but bytes can be seen by stride 1 alone
        moved = self._transport.broadcast(flat.view(torch.uint8), name)
        return moved.view(flat.dtype).reshape(tensor.shape)

    def allreduce_sum(self, tensor: Tensor, name: str = "hvdtrain.sum") -> Tensor:
        """Collective: the elementwise sum over ranks, in a new tensor of the same shape and dtype."""
        if tensor.numel() == 0:
            return tensor.clone()
        return self._transport.allreduce_sum(tensor.detach().contiguous().reshape(-1), name).reshape(tensor.shape)

    def allgather(self, tensor: Tensor, name: str = "hvdtrain.allgather") -> Tensor:
        """Collective: the ranks' tensors joined along dimension 0 in rank order; their lengths may differ, also 0."""
        return self._transport.allgather(tensor.detach().contiguous(), name)

    def gather_json(self, value: Json, name: str = "hvdtrain.gather_json") -> list[Any]:
        """Collective: every rank's value, as a list in rank order, on every rank.

        Raises:
            TypeError: the value is not JSON (on that rank; the others would wait, so check before).
        """
        text = json.dumps(value).encode()
        lengths = self._transport.allgather(torch.tensor([len(text)], dtype=torch.int64), f"{name}.lengths").tolist()
        data = self._transport.allgather(torch.frombuffer(bytearray(text), dtype=torch.uint8), f"{name}.data")
        joined, values, start = data.numpy().tobytes(), [], 0
        for length in lengths:
            values.append(json.loads(joined[start : start + length]))
            start += length
        return values

    def broadcast_json(self, value: Json, name: str = "hvdtrain.broadcast_json") -> Any:
        """Collective: root's JSON value on every rank; the others' values are not read."""
        text = json.dumps(value).encode() if self.topology.is_root else b""
        length = int(self._transport.broadcast(torch.tensor([len(text)], dtype=torch.int64), f"{name}.length").item())
        data = torch.frombuffer(bytearray(text.ljust(length)), dtype=torch.uint8)
        return json.loads(self._transport.broadcast(data, f"{name}.data").numpy().tobytes())

    def barrier(self) -> None:
        """Collective: return when every rank has called it."""
        self.gather_json(None, "hvdtrain.barrier")

    def on_root(self, function: Callable[[], T]) -> T:
        """Collective: run `function` on rank zero and give every rank its value, or raise its exception on every rank.

        The value must be JSON. An `HvdtrainError` is raised as its own class everywhere; any other exception is raised
        as itself on root and as `RootFailed`, with root's traceback in it, on the others. Both are marked as agreed.
        """
        fault: BaseException | None = None
        reply: dict[str, Any] = {}
        if self.topology.is_root:
            try:
                reply = {"value": function()}
                json.dumps(reply)
            except Exception as error:
                fault, reply = error, {"error": _describe(error)}
        reply = self.broadcast_json(reply, "hvdtrain.on_root")
        if fault is not None:
            if isinstance(fault, HvdtrainError):
                fault.agreed = True
            raise fault
        if "error" in reply:
            raise _rebuild(reply["error"])
        value: T = reply["value"]
        return value


def _describe(error: Exception) -> dict[str, Json]:
    if isinstance(error, HvdtrainError):
        return {"kind": type(error).__name__, "asked": error.asked, "found": error.found, "remedy": error.remedy}
    text = "".join(traceback.format_exception(error))
    return {"kind": "RootFailed", "asked": "run a step on rank zero alone", "found": text, "remedy": ""}


def _rebuild(fields: dict[str, str]) -> HvdtrainError:
    kind = getattr(errors, fields["kind"], RootFailed)
    error: HvdtrainError = kind(fields["asked"], found=fields["found"], remedy=fields["remedy"], agreed=True)
    return error
