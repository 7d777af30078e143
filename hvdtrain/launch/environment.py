"""Which environment variables ranks on other hosts get: an allow-list, and never anything that looks like a secret.

Only names reach a command line; the values travel inside the launcher. What a host has of its own (`HOSTNAME`,
`DISPLAY`, the launcher's variables) is never carried to another.

    passed_names(os.environ)                          # ["HOROVOD_CYCLE_TIME", "OMP_NUM_THREADS", "PATH", ...]
    passed_names(os.environ, ["MY_PROJECT_*"])        # and those, as `--env 'MY_PROJECT_*'` asks
    looks_secret("WANDB_API_KEY")                     # True: not passed, whatever the pattern says
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

ALLOWED = (
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "PYTHONHASHSEED",
    "PYTHONWARNINGS",
    "PYTHONFAULTHANDLER",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "LANG",
    "LC_*",
    "TZ",
    "HVDTRAIN_*",
    "HOROVOD_*",
    "OMP_*",
    "KMP_*",
    "MKL_*",
    "OPENBLAS_NUM_THREADS",
    "TORCH_*",
    "PYTORCH_*",
    "CUBLAS_WORKSPACE_CONFIG",
    "NCCL_*",
    "UCX_*",
    "FI_*",
    "GLOO_*",
)
# What a login session gives every program; ranks get it from ssh or not at all, but srun replaces the environment.
SESSION = ("HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "SSH_AUTH_SOCK")
# What one launcher or one process says about itself would be a lie in another.
OWN = (
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_*",
    "HOROVOD_CROSS_*",
    "HOROVOD_HOSTNAME",
    "HOROVOD_CONTROLLER",
    "HOROVOD_CPU_OPERATIONS",
    "HOROVOD_GLOO_*",
    "HOROVOD_SECRET_KEY",
)
SECRET_PARTS = ("SECRET", "TOKEN", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "PRIVATE")
SECRET_WORDS = ("KEY", "APIKEY", "AUTH", "PASS", "PWD", "COOKIE", "SESSION")


def looks_secret(name: str) -> bool:
    """Whether a variable's name suggests that its value is nobody's business."""
    upper = name.upper()
    return any(part in upper for part in SECRET_PARTS) or any(word in SECRET_WORDS for word in upper.split("_"))


def passed_names(env: Mapping[str, str], patterns: Iterable[str] = ()) -> tuple[str, ...]:
    """The names in `env` that other hosts get, sorted: the allow-list and `patterns`, less secrets and own positions.

    A name that is no identifier (`BASH_FUNC_module%%`) or whose value holds a line break is left out, since not every
    launcher can carry it.
    """
    wanted = (*ALLOWED, *patterns)
    return tuple(
        sorted(
            name
            for name, value in env.items()
            if name.isidentifier()
            and "\n" not in value
            and any(fnmatchcase(name, pattern) for pattern in wanted)
            and not any(fnmatchcase(name, pattern) for pattern in OWN)
            and not looks_secret(name)
        )
    )


def withheld_names(env: Mapping[str, str], patterns: Iterable[str]) -> tuple[str, ...]:
    """The names that the user's own `patterns` ask for and that are not passed, because they look like secrets."""
    asked = (name for name in env if any(fnmatchcase(name, pattern) for pattern in patterns))
    return tuple(sorted(name for name in asked if looks_secret(name)))
