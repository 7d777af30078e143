"""From one reader to every rank: what root found and verified is broadcast, compared, and dealt out.

All ranks return with the same run, step and state, or all of them raise.

    restored = deliver(store.newest_valid, collectives)      # root alone calls the function
    restored.step, restored.state["model"], restored.manifest.config
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from hvdtrain.checkpoint import manifest as manifests
from hvdtrain.checkpoint.format import Checkpoint
from hvdtrain.checkpoint.manifest import Manifest
from hvdtrain.collectives import Collectives, Json
from hvdtrain.errors import ReplicaMismatch
from hvdtrain.statetree import Tree, broadcast_tree, digests, flatten, tree_digest

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Restored:
    """A checkpoint on every rank.

    Attributes:
        step: optimizer updates that led to this state.
        state: entry name -> tree. An entry that was `PerRank` is this rank's value, or None when the job had another
            number of ranks.
        manifest: where it comes from: run, size, configuration, versions.
    """

    step: int
    state: dict[str, Tree]
    manifest: Manifest


def deliver(find: Callable[[], Checkpoint | None], collectives: Collectives) -> Restored | None:
    """Collective: what `find` returns on root, on every rank; None when it found none.

    Versions that differ from the saved ones are named in a warning on root.

    Raises:
        CheckpointError: as `find` raises it on root, on every rank.
        ReplicaMismatch: what arrived differs between ranks. On every rank.
    """
    found: list[Checkpoint | None] = []

    def look() -> dict[str, Json] | None:
        found.append(find())
        return manifests.to_json(found[0].manifest) if found[0] else None

    fields = collectives.on_root(look)
    if fields is None:
        return None
    manifest = manifests.from_json(fields)
    state = broadcast_tree(found[0].entries if found and found[0] else None, collectives)
    _compare(manifest, state, collectives)
    if collectives.topology.is_root:
        _warn_of_differences(manifest, collectives.topology.size)
    return Restored(manifest.step, _deal(manifest, state, collectives), manifest)


def _compare(manifest: Manifest, state: Tree, collectives: Collectives) -> None:
    """Prove that all ranks hold the same run, step and state."""
    if collectives.topology.size == 1:
        return
    rows = collectives.gather_json([manifest.run_id, manifest.step, tree_digest(state)])
    ranks = [rank for rank, row in enumerate(rows) if row != rows[0]]
    if not ranks:
        return
    tables = collectives.gather_json({**digests(flatten(state).tensors)})
    differing = [name for name in tables[0] if any(table.get(name) != tables[0][name] for table in tables)]
    raise ReplicaMismatch(
        f"restore step {manifest.step} of run {manifest.run_id} on every rank",
        found=f"ranks {ranks} hold something else than root; the first tensor that differs: {differing[:1] or 'none'}",
        agreed=True,
    )


def _warn_of_differences(manifest: Manifest, size: int) -> None:
    here, there = manifests.library_versions(), manifest.versions
    names = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    if names:
        changes = ", ".join(f"{name} {there.get(name, 'absent')} -> {here.get(name, 'absent')}" for name in names)
        _log.warning("step %d was saved with other versions: %s", manifest.step, changes)
    if manifest.per_rank and manifest.size != size:
        values = ", ".join(manifest.per_rank)
        text = "step %d was saved by %d ranks and there are %d now: each rank's own %s is not restored"
        _log.warning(text, manifest.step, manifest.size, size, values)


def _deal(manifest: Manifest, state: dict[str, Tree], collectives: Collectives) -> dict[str, Tree]:
    """The state with each per-rank entry replaced by this rank's value, or by None at another size."""
    rank, same_size = collectives.topology.rank, manifest.size == collectives.topology.size
    return {**state, **{name: state[name][rank] if same_size else None for name in manifest.per_rank}}
