"""Train on a disk that holds one and a half checkpoints, and report as JSON what became of it.

To be started in a mount namespace of its own, so that the disk is gone with the process:

    unshare --mount --propagation private python small_disk.py RUN_DIR POLICY
"""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

from hvdtrain.checkpoint.store import Store
from hvdtrain.statetree import tree_digest

TRAIN = [
    sys.executable,
    "-m",
    "hvdtrain",
    "run",
    "digits",
    "--train.progress",
    "false",
    "--checkpoint.every_steps",
    "2",
]


def train(run_dir, *options):
    """Exit status and output of one training."""
    argv = [*TRAIN, "--run-dir", run_dir, *options]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=150, check=False)
    return done.returncode, done.stdout


def found(checkpoints):
    checkpoint = Store(checkpoints).newest_valid()
    return [checkpoint.manifest.step, tree_digest(checkpoint.entries)]


def main():
    run_dir, policy = Path(sys.argv[1]), sys.argv[2]
    logging.basicConfig(level=logging.ERROR)
    checkpoints = run_dir / "checkpoints"
    assert train(run_dir, "--train.steps", "2")[0] == 0
    checkpoint = Store(checkpoints).path(2)
    occupied = sum(path.stat().st_blocks * 512 for path in checkpoint.rglob("*"))
    aside = checkpoint.rename(run_dir / "aside")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={occupied * 3 // 2},mode=700", "tmpfs", checkpoints]
    subprocess.run(mount, check=True)
    subprocess.run(["cp", "-a", aside, checkpoint], check=True)
    before = found(checkpoints)
    status, output = train(run_dir, "--train.steps", "6", "--resume", "auto", "--checkpoint.on_error", policy)
    report = {
        "before": before,
        "after": found(checkpoints),
        "status": status,
        "output": output,
        "names": sorted(os.listdir(checkpoints)),
        "free_bytes": os.statvfs(checkpoints).f_bavail * os.statvfs(checkpoints).f_frsize,
        "checkpoint_bytes": occupied,
        "summary": json.loads((run_dir / "summary.json").read_text()),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
