"""Errors carry three parts, survive a process boundary, and have the documented exit status."""

import pickle

import pytest

from hvdtrain import errors
from hvdtrain.errors import HvdtrainError

EVERY = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, HvdtrainError)]
STATUS = {"UsageError": 2, "StopRequested": 75}


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_the_exit_status_is_that_of_the_nearest_documented_class(kind):
    expected = next((STATUS[base.__name__] for base in kind.__mro__ if base.__name__ in STATUS), 1)
    assert kind.exit_status == expected


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_an_error_crosses_a_process_boundary_whole(kind):
    error = kind("this", found="that", remedy="type so", agreed=True)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.agreed) == (kind, str(error), True)


def test_the_message_has_three_parts():
    assert str(HvdtrainError("this", found="that", remedy="type so")) == "this\n  found: that\n  do:    type so"
    assert str(HvdtrainError("this", found="that")) == "this\n  found: that"


def test_the_tree_at_the_top_of_the_file_is_complete():
    for kind in EVERY:
        assert any(f" {kind.__name__} " in line for line in errors.__doc__.splitlines()), kind
