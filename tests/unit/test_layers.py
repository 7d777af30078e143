"""The order of the house: a module imports only from a lower floor, from its own room, or along a drawn arrow."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "hvdtrain"

FLOORS: dict[str, int] = {
    **dict.fromkeys(["errors", "topology", "versions", "config", "settings", "profile"], 0),
    **dict.fromkeys(
        ["runtime", "census", "collectives", "checks", "statetree", "launch", "install", "failure", "phases"], 1
    ),
    **dict.fromkeys(["data", "sync", "checkpoint", "metrics", "watchdog", "stopping"], 2),
    **dict.fromkeys(["train"], 3),
    **dict.fromkeys(["diagnostics"], 4),
    **dict.fromkeys(["__init__", "__main__", "cli", "recipes"], 5),
}
ARROWS = {
    ("profile", "errors"),
    ("runtime", "collectives"),
    ("runtime", "checks"),
    ("runtime", "census"),
    ("census", "checks"),
    ("census", "launch"),  # which variables matter to a training?
    ("runtime", "install"),  # which torch was Horovod built for?
    ("runtime", "failure"),
    ("runtime", "phases"),
    ("collectives", "phases"),
    ("failure", "phases"),
    ("runtime", "launch"),
    ("statetree", "collectives"),
    ("__main__", "cli"),
    ("cli", "recipes"),
}
LIGHT_ROOMS = {
    "errors",
    "topology",
    "versions",
    "config",
    "settings",
    "profile",
    "checks",
    "census",
    "launch",
    "install",
    "failure",
    "phases",
}
HEAVY = {"torch", "horovod", "mpi4py", "numpy"}


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            yield from [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from [alias.name for alias in node.names]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_below(path):
    room = room_of(path)
    for name in imports_of(path):
        if not name.startswith("hvdtrain.") or name == "hvdtrain.__version__":
            continue
        other = name.split(".")[1]
        allowed = FLOORS[other] < FLOORS[room] or other == room or (room, other) in ARROWS
        assert allowed, f"{room} (floor {FLOORS[room]}) imports {name} (floor {FLOORS[other]})"


@pytest.mark.parametrize("path", [p for p in modules() if room_of(p) in LIGHT_ROOMS], ids=lambda p: p.name)
def test_rooms_for_a_login_node_import_no_heavy_library(path):
    assert not [name for name in imports_of(path) if name.split(".")[0] in HEAVY]
