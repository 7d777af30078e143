"""Killed twenty times, on the way before, between and during saves, a training ends as if nothing had happened."""

import re
import subprocess
from pathlib import Path

SOAK = Path(__file__).parents[2] / "scripts" / "soak"


def soak(*options, limit_s):
    return subprocess.run([SOAK, *options], capture_output=True, text=True, timeout=limit_s, check=False)


def test_the_weights_are_those_of_an_unkilled_run_bit_for_bit(full):
    kills = 100 if full else 20
    done = soak("--kills", str(kills), limit_s=1500 if full else 280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"soak: {kills} kills" in done.stdout
    moments = re.findall(r"^kill \d+ of \d+: .* of 2, (.*)$", done.stdout, re.M)
    assert len(moments) == kills
    assert {"before the first save", "between saves", "during a save"} <= set(moments)


def test_on_other_numbers_of_ranks_the_order_goes_on_and_the_loss_agrees():
    done = soak("--kills", "5", "--sizes", "2,3,1,4", limit_s=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^kill \d+ of 5: ", done.stdout, re.M)) == 5
