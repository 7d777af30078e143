"""Groups are fixed by the parameters alone, complete, in backward's order, and of one dtype each."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.sync.buckets import buckets

TENSORS = st.lists(
    st.tuples(st.integers(1, 50), st.sampled_from([torch.float32, torch.float16, torch.float64])), max_size=30
).map(lambda shapes: [torch.zeros(numel, dtype=dtype) for numel, dtype in shapes])


@given(TENSORS, st.integers(1, 500))
def test_every_parameter_is_in_one_group_from_the_last_to_the_first(parameters, bucket_bytes):
    groups = buckets(parameters, bucket_bytes)
    assert [id(p) for group in groups for p in group] == [id(p) for p in reversed(parameters)]


@given(TENSORS, st.integers(1, 500))
def test_a_group_has_one_dtype_and_is_closed_when_full(parameters, bucket_bytes):
    for group in buckets(parameters, bucket_bytes):
        assert len({p.dtype for p in group}) == 1
        assert sum(p.numel() * p.element_size() for p in group[:-1]) < bucket_bytes
