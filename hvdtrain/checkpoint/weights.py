"""A model's weights in and out, as one file that other programs know: `.safetensors`, or `.pt` of torch.

Nothing in such a file is executed: `.pt` is read through `weights_only=True`, and only because the user named it. What
is written appears whole under its name or not at all.

    report = load_initial(Path("resnet.safetensors"), model)    # {"loaded": 120, "missing": [], "unexpected": ["fc.b"]}
    exported = export(Path("runs/digits"), Path("digits.pt"))   # {"step": 40, "run_id": "b6", "tensors": 12, ...}
"""

from __future__ import annotations

import io
import os
import secrets
from pathlib import Path
from typing import Any, Protocol, TypedDict

import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from hvdtrain.checkpoint.store import Store
from hvdtrain.checkpoint.tensorfile import create
from hvdtrain.collectives import Collectives
from hvdtrain.errors import CheckpointError, InvalidCheckpoint, RunDirectoryError, UsageError
from hvdtrain.statetree import digest

SAFETENSORS = {".safetensors"}
TORCH = {".pt", ".pth"}
CHECKPOINTS = "checkpoints"  # in a run directory
MODEL = "model"  # the entry of a checkpoint


class Job(Protocol):
    """What saving must know of a run: `hvdtrain.runtime.Run` is one."""

    @property
    def collectives(self) -> Collectives:
        """The operations by which ranks agree."""


class InitialReport(TypedDict):
    """What became of a state dict: how many tensors the model took, and the names that did not meet."""

    loaded: int
    missing: list[str]
    unexpected: list[str]


class Exported(TypedDict):
    """What was written: the step and run it is from, how many tensors, and their digest (see `statetree.digest`)."""

    file: str
    run_id: str
    step: int
    tensors: int
    weights_sha256: str


def load_initial(path: Path, model: nn.Module) -> InitialReport:
    """Root only: copy the tensors of a file into the parameters and buffers of the same names.

    A `.pt` file may hold the state dict itself, or a dict that has it under `state_dict` or `model`.

    Args:
        path: `.safetensors`, `.pt` or `.pth`.
        model: what takes the values, cast to its own dtypes and devices.

    Returns:
        Plain JSON, so that it can pass through `on_root`.

    Raises:
        UsageError: there is no such file, or its suffix is none of these.
        InvalidCheckpoint: it cannot be read, holds no state dict, has no name in common with the model, or a tensor
            has another shape there. The model is unchanged.
    """
    _check_suffix(path, "start from")
    if not path.is_file():
        raise UsageError(f"start from the weights in {path}", found="there is no such file")
    tensors = _read(path)
    wanted = model.state_dict()
    _check_fit(path, tensors, wanted)
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    return {
        "loaded": len(tensors.keys() & wanted.keys()),
        "missing": sorted(missing),
        "unexpected": sorted(unexpected),
    }


def _check_suffix(path: Path, verb: str) -> None:
    known = sorted(SAFETENSORS | TORCH)
    if path.suffix not in known:
        raise UsageError(f"{verb} {path}", found=f"a suffix {path.suffix!r}", remedy=f"use one of {', '.join(known)}")


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix in SAFETENSORS:
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a foreign file can make its reader raise anything
        raise InvalidCheckpoint(f"read the weights in {path}", found=f"{type(error).__name__}: {error}") from error
    return _state_dict_in(path, content)


def _state_dict_in(path: Path, content: Any) -> dict[str, Tensor]:
    candidates = [content, *(content.get(key) for key in ("state_dict", "model") if isinstance(content, dict))]
    for candidate in candidates:
        if isinstance(candidate, dict) and candidate and all(map(_is_named_tensor, candidate.items())):
            return dict(candidate)
    found = f"a dict of {', '.join(map(str, content))}" if isinstance(content, dict) else f"a {type(content).__name__}"
    raise InvalidCheckpoint(f"find a state dict in {path}", found=found, remedy="save model.state_dict() alone")


def _is_named_tensor(item: tuple[object, object]) -> bool:
    return isinstance(item[0], str) and isinstance(item[1], Tensor)


def _check_fit(path: Path, tensors: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    common = [name for name in wanted if name in tensors]
    if not common:
        found = (
            f"no name in common; it has {', '.join(sorted(tensors)[:3])} ..., the model {', '.join(wanted)[:80]} ..."
        )
        raise InvalidCheckpoint(
            f"start from the weights in {path}", found=found, remedy="rename the tensors in the file"
        )
    wrong = [name for name in common if tensors[name].shape != wanted[name].shape]
    if wrong:
        shapes = "; ".join(f"{name}: {list(tensors[name].shape)}, not {list(wanted[name].shape)}" for name in wrong)
        raise InvalidCheckpoint(
            f"start from the weights in {path}", found=shapes, remedy="drop or reshape these tensors"
        )


def export(run_dir: Path, file: Path) -> Exported:
    """Root only: write the model of the newest valid checkpoint of a run to one file, replacing it if it exists.

    Raises:
        UsageError: the suffix is neither `.safetensors` nor that of torch.
        RunDirectoryError: the run has no checkpoint.
        CheckpointError: it has none that is valid, or no model in it.
    """
    _check_suffix(file, "export to")
    checkpoint = Store(run_dir / CHECKPOINTS).newest_valid()
    if checkpoint is None:
        raise RunDirectoryError(f"export the model of {run_dir}", found=f"no checkpoint in {run_dir / CHECKPOINTS}")
    tensors, manifest = checkpoint.entries.get(MODEL), checkpoint.manifest
    if not isinstance(tensors, dict) or not all(map(_is_named_tensor, tensors.items())):
        found = f"step {manifest.step} has {', '.join(checkpoint.entries)}, and no dict of tensors as {MODEL!r}"
        raise CheckpointError(f"export the model of {run_dir}", found=found)
    _write(file, _encoded(file, tensors))
    return {
        "file": str(file),
        "run_id": manifest.run_id,
        "step": manifest.step,
        "tensors": len(tensors),
        "weights_sha256": digest(tensors),
    }


def save(run: Job, file: Path | str, model: nn.Module) -> None:
    """Collective: root writes the model's weights to one file, `.safetensors` or `.pt`, replacing it if it exists.

    Raises:
        UsageError: the suffix is neither.
        CheckpointError: it cannot be written. On every rank.
    """
    path = Path(file)
    _check_suffix(path, "save")
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    run.collectives.on_root(lambda: _write(path, _encoded(path, tensors)))


def _encoded(file: Path, tensors: dict[str, Tensor]) -> bytes:
    if file.suffix in SAFETENSORS:
        return to_safetensors(tensors, metadata={"format": "pt"})
    stream = io.BytesIO()
    torch.save(tensors, stream)
    return stream.getvalue()


def _write(file: Path, data: bytes) -> None:
    hidden = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with create(hidden) as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        hidden.replace(file)
    except OSError as error:
        hidden.unlink(missing_ok=True)
        raise CheckpointError(f"write {file}", found=f"{type(error).__name__}: {error}") from error
