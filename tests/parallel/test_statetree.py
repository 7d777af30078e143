"""Root's tree arrives on every rank as it was, whatever the others held."""

import pytest
import torch

from hvdtrain import statetree
from hvdtrain.errors import RootFailed
from hvdtrain.statetree import broadcast_tree, from_json, to_json, tree_digest


def tree_of(rank):
    generator = torch.Generator().manual_seed(rank)
    return {
        "model": {"w": torch.randn(300, 7, generator=generator), "turned": torch.eye(3)[:2].t() * rank},
        "narrow": torch.randn(5, generator=generator).bfloat16(),
        "flags": torch.tensor([True, False, rank == 0]),
        "complex": torch.tensor([1j * rank]).conj(),
        "scalar": torch.tensor(rank, dtype=torch.uint64),
        "empty": torch.empty(0, rank),
        "state": {0: (rank, None, float("nan"), float("-inf"), -0.0), "0": [True, "größer", 2**80]},
    }


def test_every_rank_gets_root_s_tree(run):
    mine = tree_of(run.topology.rank)
    got = broadcast_tree(mine, run.collectives)
    assert run.collectives.gather_json(tree_digest(got)) == [tree_digest(tree_of(0))] * run.topology.size
    assert got["state"][0][:2] == (0, None)
    assert tree_digest(mine) == tree_digest(tree_of(run.topology.rank))


def test_the_others_need_not_hold_anything(run):
    got = broadcast_tree(tree_of(0) if run.topology.is_root else None, run.collectives)
    assert tree_digest(got) == tree_digest(tree_of(0))


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64])
def test_it_arrives_in_any_chunks(run, monkeypatch, chunk_bytes):
    whole = statetree._chunks
    monkeypatch.setattr(statetree, "_chunks", lambda sizes: whole(sizes, limit=chunk_bytes))
    tree = {"a": torch.arange(9.0), "b": torch.tensor([True] * 5), "c": torch.empty(0), "d": torch.tensor(7)}
    got = broadcast_tree(tree if run.topology.is_root else None, run.collectives)
    assert tree_digest(got) == tree_digest(tree)


def test_a_tensor_larger_than_a_chunk_arrives(run):
    tree = {"large": torch.arange(statetree.CHUNK_BYTES // 4 + 5, dtype=torch.int32), "after": torch.ones(3)}
    got = broadcast_tree(tree if run.topology.is_root else None, run.collectives)
    verdicts = run.collectives.gather_json(bool(torch.equal(got["large"], tree["large"])))
    assert all(verdicts)
    assert got["after"].tolist() == [1, 1, 1]


def test_a_tree_that_is_not_plain_raises_on_every_rank(run):
    tree = {"hook": print} if run.topology.is_root else {}
    with pytest.raises(TypeError if run.topology.is_root else RootFailed, match="hook: a builtin_function"):
        broadcast_tree(tree, run.collectives)


def test_small_trees_can_be_gathered(run):
    rows = run.collectives.gather_json(to_json(tree_of(run.topology.rank)))
    assert [tree_digest(from_json(row)) for row in rows] == [tree_digest(tree_of(r)) for r in range(run.topology.size)]
