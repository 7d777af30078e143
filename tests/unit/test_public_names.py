"""The public face: names, verbs, and that importing starts nothing."""

import importlib
import subprocess
import sys

import hvdtrain
from hvdtrain.cli import VERBS

PUBLIC = {
    "Augmented",
    "Callback",
    "Config",
    "HvdtrainError",
    "Output",
    "Recipe",
    "Run",
    "Topology",
    "__version__",
    "evaluation_loader",
    "init",
    "loader",
    "prepare",
    "save",
    "stage",
    "stream_loader",
    "together",
    "watch",
    "wrap_dataloader",
}


def test_the_public_names_are_these_and_all_are_there():
    assert set(hvdtrain.__all__) == PUBLIC
    assert all(getattr(hvdtrain, name) for name in PUBLIC)


def test_every_verb_has_a_module():
    for module, _ in VERBS.values():
        found = importlib.import_module(module)
        assert hasattr(found, "main") or (hasattr(found, "run") and hasattr(found, "add_arguments"))


def test_importing_starts_nothing_and_loads_nothing_heavy():
    program = (
        "import os, sys, threading, logging; before = dict(os.environ); import hvdtrain, hvdtrain.cli; "
        "assert dict(os.environ) == before; assert threading.active_count() == 1; "
        "assert not logging.getLogger('hvdtrain').handlers; "
        "print(sorted({'torch', 'horovod', 'mpi4py', 'numpy', 'rich', 'yaml', 'jsonargparse'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
