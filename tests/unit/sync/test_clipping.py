"""One pass says the norm and whether all is finite; limits are those of torch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdtrain.sync.clipping import Clipping, all_finite, scale_gradients, total_norm

NUMBERS = st.lists(st.lists(st.floats(-100, 100, width=32), max_size=5), max_size=4)


@given(NUMBERS)
def test_the_norm_is_that_of_all_elements_together(parts):
    gradients = [torch.tensor(part, dtype=torch.float32) for part in parts]
    assert total_norm(gradients) == pytest.approx(math.sqrt(sum(x * x for part in parts for x in part)), rel=1e-5)


@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("count", [1, 3])
def test_one_element_that_is_not_finite_is_seen(odd, count):
    gradients = [torch.ones(7) for _ in range(count)]
    assert all_finite(gradients, total_norm(gradients))
    gradients[-1][3] = odd
    assert not all_finite(gradients, total_norm(gradients))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_finite_elements_whose_squares_overflow_are_finite(dtype):
    large = [torch.full((2,), torch.finfo(dtype).max, dtype=dtype)] * 2
    assert math.isinf(total_norm(large))
    assert all_finite(large, total_norm(large))


def test_sparse_and_empty_gradients_count_like_others():
    with torch.sparse.check_sparse_tensor_invariants():
        sparse = torch.sparse_coo_tensor(torch.tensor([[0, 0]]), torch.tensor([1.0, 2.0]), (5,))  # row 0 is 3
        assert total_norm([sparse, torch.empty(0), torch.tensor([4.0])]) == pytest.approx(5.0)
    assert total_norm([]) == 0.0
    assert all_finite([], 0.0)


@settings(deadline=None)  # torch's first call of its clipping takes long
@given(NUMBERS.filter(any), st.floats(1e-3, 10), st.floats(0.1, 10))
def test_averaging_and_clipping_in_one_pass_is_what_torch_does_after_averaging(parts, limit, samples):
    gradients = [torch.tensor(part, dtype=torch.float32) for part in parts]
    parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient / samples
    torch.nn.utils.clip_grad_norm_(parameters, limit)
    scale_gradients(gradients, Clipping(norm=limit).factor(total_norm(gradients) / samples) / samples)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-5, atol=1e-6)


def test_elements_are_limited_on_both_sides():
    gradients = [torch.tensor([-3.0, 0.5]), torch.tensor([2.0])]
    Clipping(value=1.0).limit_values(gradients)
    Clipping(value=1.0).limit_values([])
    assert [gradient.tolist() for gradient in gradients] == [[-1.0, 0.5], [1.0]]
