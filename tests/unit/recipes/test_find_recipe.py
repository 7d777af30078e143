"""Finding a recipe: built in, or in a file that worker processes can import under the same name."""

import sys

import pytest

from hvdtrain.config import Config, faults, flatten, overlay
from hvdtrain.errors import UsageError
from hvdtrain.recipes import find_recipe
from hvdtrain.recipes.recipe import BUILT_IN


@pytest.fixture(autouse=True)
def path_as_it_was(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        if name.startswith("recipe_of_a_test"):
            del sys.modules[name]


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_recipes_have_possible_defaults(name):
    source = find_recipe(name)
    assert set(source.defaults) <= set(flatten(Config()))
    assert faults(overlay(Config(), source.defaults)) == []


def test_a_file_is_imported_under_its_stem(tmp_path):
    file = tmp_path / "recipe_of_a_test.py"
    file.write_text("DEFAULTS = {'train.epochs': 3}\n\ndef recipe(config):\n    return None\n")
    source = find_recipe(str(file))
    assert (source.name, source.defaults) == ("recipe_of_a_test", {"train.epochs": 3})
    assert source.build.__module__ == "recipe_of_a_test"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("recipe_of_a_test_1.py", "x = 1\n", "no function named recipe"),
        ("json.py", "def recipe(config): ...\n", "already means"),
        ("recipe_of_a_test_2.py", None, "no such file"),
    ],
)
def test_what_is_no_recipe_is_refused_with_what_to_do(tmp_path, name, text, says):
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=says) as refused:
        find_recipe(str(file))
    assert refused.value.remedy
