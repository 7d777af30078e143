"""The copy stands still while the state moves on, in memory that is used again."""

import pytest
import torch

from hvdtrain.checkpoint.snapshot import PIECE_BYTES, HostCopier
from hvdtrain.statetree import flatten, tree_digest, unflatten


def state(value):
    weight = torch.full((3, 2), value)
    return {"model": flatten({"w": weight, "turned": weight.t(), "n": torch.tensor(1, dtype=torch.int8), "k": value})}


def test_the_copy_does_not_move_with_the_state():
    live = {"w": torch.zeros(3), "half": torch.zeros(2).bfloat16()}
    before = tree_digest(live)
    still = HostCopier().copy({"model": flatten(live)})["model"]
    live["w"] += 1
    assert tree_digest(unflatten(still.skeleton, still.tensors)) == before != tree_digest(live)


def test_the_memory_is_used_again():
    copier = HostCopier()
    first = {name: tensor.data_ptr() for name, tensor in copier.copy(state(1.0))["model"].tensors.items()}
    second = copier.copy(state(2.0))["model"]
    assert {name: tensor.data_ptr() for name, tensor in second.tensors.items()} == first
    assert tree_digest(unflatten(second.skeleton, second.tensors)) == tree_digest(
        unflatten(state(2.0)["model"].skeleton, state(2.0)["model"].tensors)
    )


def test_what_changed_its_shape_or_dtype_gets_new_memory_and_what_is_gone_lets_go():
    copier = HostCopier()
    copier.copy({"a": flatten({"w": torch.zeros(2), "v": torch.zeros(2)}), "b": flatten([torch.zeros(1)])})
    copied = copier.copy({"a": flatten({"w": torch.ones(3), "v": torch.ones(2, dtype=torch.int32)})})["a"].tensors
    assert copied["w"].tolist() == [1, 1, 1]
    assert copied["v"].dtype == torch.int32
    assert len(copier._buffers) == 2


@pytest.mark.parametrize("threads", [1, 3])
def test_every_byte_of_every_kind_of_tensor_is_copied(threads):
    large = torch.arange(3 * PIECE_BYTES // 8 + 5)
    tree = [large, large[::2], large.reshape(-1, 1).t(), torch.tensor([1j, 2]).conj(), torch.tensor([1j]).conj().imag]
    tree += [torch.tensor(True), torch.empty(0, 3), torch.nn.Parameter(torch.ones(3).bfloat16())]
    flat = flatten(tree)
    still = HostCopier(threads=threads).copy({"all": flat})["all"]
    assert tree_digest(unflatten(still.skeleton, still.tensors)) == tree_digest(tree)
    assert not {t.data_ptr() for t in still.tensors.values() if t.numel()} & {t.data_ptr() for t in tree}


@pytest.mark.gpu
def test_a_copy_from_a_gpu_is_complete_and_pinned():
    if not torch.cuda.is_available():
        pytest.skip("there is no NVIDIA GPU")
    live = torch.arange(1 << 20, device="cuda")
    still = HostCopier().copy({"model": flatten([live])})["model"].tensors["0"]
    live += 1
    assert still.is_pinned()
    assert torch.equal(still, torch.arange(1 << 20))
