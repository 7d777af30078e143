"""The first process of a test host: it gives the host its own face, starts its daemons, and reaps what they leave.

It runs as process 1 in namespaces of its own (network, host name, mounts, IPC, processes), so that killing it takes
everything along that was ever started there. Mounts are private to the host: nothing of the machine is changed.

    unshare --net --uts --mount --ipc --pid --fork --mount-proc python host_init.py NAME DIRECTORY [sshd munged ...]
"""

import os
import subprocess
import sys
import time
from pathlib import Path

TMPDIR = "/run/tmp"  # of this host alone: Open MPI 5 keeps sessions in TMPDIR/prted.PID, and hosts have the same PIDs


def mount(*words):
    subprocess.run(["mount", *words], check=True)


def arrange(name, directory):
    """The host's own name, shared memory, run directory, names of hosts, ssh and SLURM configuration."""
    subprocess.run(["hostname", name], check=True)
    mount("-t", "tmpfs", "-o", "mode=1777,size=2g", "tmpfs", "/dev/shm")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for path, target in {"hosts": "/etc/hosts", "ssh": "/etc/ssh", "slurm": "/etc/slurm"}.items():
        if (directory / path).exists():
            mount("--bind", str(directory / path), target)
    for path in ("/run/sshd", "/run/munge", "/run/lock", TMPDIR):
        Path(path).mkdir(mode=0o755)


def daemons(name, directory):
    log = directory / "log"
    spool = directory / "spool" / name
    spool.mkdir(parents=True, exist_ok=True)
    key = directory / "munge.key"
    return {
        "sshd": ["/usr/sbin/sshd", "-D", "-f", "/etc/ssh/sshd_config", "-E", str(log / f"sshd-{name}.log")],
        "munged": [
            *["/usr/sbin/munged", "--foreground", "--force", f"--key-file={key}", f"--seed-file={spool}/munge.seed"],
            *["--pid-file=/run/munge/munged.pid", f"--log-file={log}/munged-{name}.log"],
        ],
        "slurmctld": ["/usr/sbin/slurmctld", "-D", "-i"],
        "slurmd": ["/usr/sbin/slurmd", "-D", "-N", name],
    }


def start(argv, output):
    with output.open("ab") as file:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def main():
    name, directory, wanted = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    arrange(name, directory)
    print("arranged", flush=True)
    sys.stdin.readline()  # the network is there
    known = daemons(name, directory)
    for daemon in wanted:
        start(known[daemon], directory / "log" / f"{daemon}-{name}.out")
        if daemon == "munged":
            wait_for(Path("/run/munge/munge.socket.2"))
    print("ready", flush=True)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.05)


def wait_for(path, limit_s=10.0):
    deadline = time.monotonic() + limit_s
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


if __name__ == "__main__":
    main()
