"""`hvdtrain sbatch` prints the script that the options ask for."""

import pytest

from hvdtrain.cli import main
from hvdtrain.cli.sbatch import name_for


def printed(capsys, *words):
    assert main(["sbatch", *words]) == 0
    return capsys.readouterr().out


def test_options_become_directives(capsys, tmp_path):
    (tmp_path / "site.sh").write_text("module load cuda\n")
    options = ["-N", "2", "--ntasks-per-node", "4", "--time", "1:00:00", "--requeue", "--directive=--exclusive"]
    options += ["--prologue", str(tmp_path / "site.sh"), "--network", "10.1.4.7/16", "--env", "MY_*"]
    shown = printed(capsys, *options, "--", "hvdtrain", "run", "digits")
    for line in (
        "#SBATCH --job-name=digits",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --time=1:00:00",
        "#SBATCH --exclusive",
        "#SBATCH --signal=B:USR1@120",
        "#SBATCH --requeue",
        "module load cuda",
        "hvdtrain launch --network 10.1.0.0/16 --env 'MY_*' -- hvdtrain run digits --resume auto &",
    ):
        assert line in shown.splitlines()


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("hvdtrain", "run", "digits"), "digits"),
        (("/opt/bin/hvdtrain", "run", "dir/my recipe.py"), "myrecipe"),
        (("python", "train.py"), "python"),
        (("/ /",), "hvdtrain"),
    ],
)
def test_the_job_is_named_for_its_command(command, name):
    assert name_for(command) == name


def test_a_missing_prologue_is_exit_2(capsys):
    assert main(["sbatch", "--prologue", "/nowhere/site.sh", "--", "true"]) == 2
    assert "/nowhere/site.sh" in capsys.readouterr().err
