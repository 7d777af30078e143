"""A public function that communicates says so first: its docstring begins with *Collective:*."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "hvdtrain"
OPERATIONS = {"gather_json", "broadcast_json", "allreduce_sum", "barrier", "on_root", "broadcast_tree", "allgather"}


def public_functions():
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                yield path, node


def called(function):
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            yield node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def test_functions_that_communicate_say_so():
    communicating = [(path, node) for path, node in public_functions() if OPERATIONS & set(called(node))]
    silent = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}"
        for path, node in communicating
        if not (ast.get_docstring(node) or "").startswith("Collective:")
    ]
    assert len(communicating) > 10, "the test looks at nothing"
    assert silent == []
