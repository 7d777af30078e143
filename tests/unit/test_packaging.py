"""A wheel holds only folders with an `__init__.py`; an editable installation hides that one is missing."""

from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "hvdtrain"


@pytest.mark.parametrize("folder", sorted({path.parent for path in PACKAGE.rglob("*.py")}), ids=lambda p: p.name)
def test_every_room_is_a_package(folder):
    assert (folder / "__init__.py").is_file()
