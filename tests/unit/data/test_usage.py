import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.data import usage
from hvdtrain.data.usage import Usage


@pytest.mark.parametrize("always_bits", [2**26, 0])
@given(n=st.integers(1, 5000), data=st.data())
def test_it_is_a_set_that_notices_repetitions(always_bits, n, data):
    calls = data.draw(st.lists(st.lists(st.integers(0, n - 1), max_size=40), max_size=8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(usage, "_ALWAYS_BITS", always_bits)
        used = Usage(n)
    model = set()
    for call in calls:
        repeated = {sample for sample in call if sample in model or call.count(sample) > 1}
        assert used.add(np.array(call, dtype=np.int64)).tolist() == sorted(repeated)
        model |= set(call)
        assert used.count == len(model)
        assert all((sample in used) == (sample in model) for sample in range(0, n, 97))
    absent = [sample for sample in range(n) if sample not in model]
    assert used.missing(limit=n).tolist() == absent
    assert used.missing(limit=3).tolist() == absent[:3]


def test_few_samples_of_a_huge_data_set_take_little_memory():
    used = Usage(10**12)
    samples = np.random.default_rng(0).choice(10**12, size=20_000, replace=True)
    for part in np.split(samples, 20):
        assert used.add(part).size == 0
    assert used.add(samples[777:778]).tolist() == [samples[777]]
    assert used._bits is None
    assert sum(run.nbytes for run in used._runs) == 8 * 20_000


def test_foreign_samples_are_refused():
    with pytest.raises(IndexError):
        Usage(5).add(np.array([5]))
