"""Real hosts on one machine: each a set of namespaces with its own network, name, processes, shared memory and daemons.

Hosts see the same files, as on a cluster with a shared file system. Everything lives in namespaces, the bridges too, so
the machine's own network, /etc and ~/.ssh are never touched, and all of it is gone when the hosts' first processes are
killed, whatever happened in them. Two networks join the hosts, `eth0` for names and `dataN` for traffic; the latter is
called differently on each host, as it happens on real clusters. It needs root, and Debian's `iproute2 openssh-server`,
for SLURM also `slurm-wlm munge`.

    with Cluster.up(Path("/tmp/c"), slurm=True) as cluster:
        cluster.run("head", ["ssh", "node1", "hostname"]).stdout            # "node1\\n"
        cluster.run("head", ["srun", "-N", "2", "hostname"])
        cluster.shape("100mbit")                                            # every link, in both directions
        cluster.cut("node2")                                                # the link goes down
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from cluster_files import HEAD, write_files
from host_init import TMPDIR

NETWORK = "10.77.0.0/24"
DATA_NETWORK = "10.78.0.0/24"
HERE = Path(__file__).parent
PR_SET_PDEATHSIG = 1


def missing(slurm):
    """What keeps this machine from having hosts of its own, or an empty string."""
    if os.geteuid() != 0:
        return "hosts of one's own need root"
    tools = ["ip", "tc", "unshare", "nsenter", "sshd", "ssh-keygen"] + ["slurmctld", "slurmd", "munged", "srun"] * slurm
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    absent = [tool for tool in tools if shutil.which(tool, path=path) is None]
    if absent:
        return f"no {', '.join(absent)}: apt-get install iproute2 openssh-server slurm-wlm munge"
    probe = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "true"], capture_output=True
    )
    return "" if probe.returncode == 0 else f"no namespaces: {probe.stderr.decode().strip()}"


@dataclass
class Cluster:
    """Hosts that run; `pids` are their first processes, as the machine sees them."""

    directory: Path
    pids: dict[str, int]
    nodes: list[str]
    processes: list[subprocess.Popen] = field(default_factory=list)

    @classmethod
    def up(cls, directory, nodes=3, slurm=False, cores=2, bound=True):
        """Start the head and `nodes` hosts; with `bound` they end with this process, whatever becomes of it."""
        names = [f"node{number}" for number in range(1, nodes + 1)]
        write_files(directory, names, slurm, cores)
        cluster = cls(directory, {}, names)
        try:
            for name in [HEAD, *names]:
                cluster._start(name, slurm, bound)
            cluster._connect()
            for process in cluster.processes:
                process.stdin.write(b"go\n")
                process.stdin.flush()
            for process in cluster.processes:
                expect(process, b"ready\n")
            cluster._wait_until_usable(slurm)
        except BaseException:
            cluster.down()
            raise
        return cluster

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.down()

    def _start(self, name, slurm, bound):
        daemons = ["sshd"] + ["munged", "slurmctld" if name == HEAD else "slurmd"] * slurm
        flags = ["--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child=KILL"]
        argv = ["unshare", *flags, sys.executable, str(HERE / "host_init.py"), name, str(self.directory), *daemons]
        home = {"HOME": os.environ.get("HOME", "/root"), "LANG": "C.UTF-8"}
        with (self.directory / "log" / f"init-{name}.log").open("wb") as log:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                preexec_fn=die_with_parent if bound else os.setsid,
                env={"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", **home},
            )
        self.processes.append(process)
        expect(process, b"arranged\n")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        self.pids[name] = int(children[0])

    def _connect(self):
        """The bridges stand in the head's network; each host gets two ends of pairs, one on each."""
        for bridge, address in {"br0": "10.77.0.254/24", "br1": "10.78.0.254/24"}.items():
            self._ip("link", "add", bridge, "type", "bridge")
            self._ip("addr", "add", address, "dev", bridge)
            self._ip("link", "set", bridge, "up")
        self._ip("link", "set", "lo", "up")
        for number, name in enumerate(self.nodes, start=1):
            self._ip("link", "set", "lo", "up", host=name)
            for (bridge, inner), network in zip(links_of(number), ("10.77.0", "10.78.0"), strict=True):
                outer = f"{bridge}-{name}"
                pair = ["link", "add", outer, "type", "veth", "peer", "name", inner, "netns", str(self.pids[name])]
                self._ip(*pair)
                self._ip("link", "set", outer, "master", bridge, "up")
                self._ip("addr", "add", f"{network}.{number}/24", "dev", inner, host=name)
                self._ip("link", "set", inner, "up", host=name)

    def _ip(self, *words, host=HEAD):
        self._configure("ip", *words, host=host)

    def _configure(self, *words, host):
        """Run a tool of iproute2 in the host's network; this machine's own is another."""
        env = {**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
        subprocess.run(["nsenter", "-t", str(self.pids[host]), "-n", *words], check=True, env=env)

    def _wait_until_usable(self, slurm):
        for name in self.nodes:
            self.wait(["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=1", name, "true"])
        if slurm:
            idle = f"test $(sinfo -h -N -t idle -o %n | wc -l) -eq {len(self.nodes)}"
            self.wait(["sh", "-c", idle])

    def wait(self, command, host=HEAD, limit_s=20.0):
        """Repeat `command` on a host until it succeeds."""
        deadline = time.monotonic() + limit_s
        while (done := self.run(host, command)).returncode != 0:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{command} on {host}: {done.stdout}{done.stderr}")
            time.sleep(0.1)

    def enter(self, host):
        """The words before a command that make it run on `host`."""
        namespaces = ["-n", "-u", "-m", "-i", "-p", f"--wd={os.getcwd()}"]
        return ["nsenter", "-t", str(self.pids[host]), *namespaces, "env", f"TMPDIR={TMPDIR}"]

    def start(self, host, command, env=None, **options):
        """Start `command` on `host` and return its `Popen`, with its output in pipes."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([*self.enter(host), *command], env=env, **{**pipes, **options})

    def run(self, host, command, env=None, limit_s=60.0):
        """Run `command` on `host` to its end, which must come within the limit; the result has its output."""
        with self.start(host, command, env, start_new_session=True) as process:
            try:
                out, err = process.communicate(timeout=limit_s)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def processes_of(self, host, text):
        """The command lines on `host` that hold `text`, read from the outside, so the host need not answer."""
        found = self.run(host, ["ps", "-eww", "-o", "pid=,stat=,args="]).stdout.splitlines()
        return [line for line in found if text in line and " Z" not in line[:14] and " ps -eww" not in line]

    def cut(self, host):
        """Take the host's links down: it lives on, and nobody reaches it."""
        for bridge in ("br0", "br1"):
            self._ip("link", "set", f"{bridge}-{host}", "down")

    def mend(self, host):
        """Take the host's links up again."""
        for bridge in ("br0", "br1"):
            self._ip("link", "set", f"{bridge}-{host}", "up")

    def give_core(self, host, core):
        """Let the host compute on that core of the machine alone: its processes, and all that they start."""
        every = f"import os; [os.sched_setaffinity(int(p), [{core}]) for p in os.listdir('/proc') if p.isdigit()]"
        done = self.run(host, ["python3", "-c", every])
        if done.returncode:
            raise RuntimeError(f"give {host} core {core}: {done.stderr}")

    def shape(self, rate):
        """Give each link of every host this rate ("100mbit", in the words of tc), each way; None takes it off again.

        What a host sends waits in its own end of a link, what it receives in the bridge's, so that hosts that all send
        to one share its rate, as at a switch. A link that was idle gives one millisecond of it at once, no more: small
        messages take their time too. Bytes are counted as on a wire, headers and all.

        Raises:
            ValueError: the rate is none that tc understands, or has no unit.
        """
        words = ["tbf", "rate", rate, "burst", str(burst_bytes(rate)), "latency", "100ms"] if rate else []
        for number, name in enumerate(self.nodes, start=1):
            for bridge, inner in links_of(number):
                for host, end in ((name, inner), (HEAD, f"{bridge}-{name}")):
                    self._queue(host, end, words)

    def _queue(self, host, interface, words):
        """Let the interface send through that queue of tc's; through none, with no words."""
        self._configure("tc", "qdisc", "replace", "dev", interface, "root", *(words or ["noqueue"]), host=host)

    def kill_everything_on(self, host):
        """SIGKILL to every process of the host but its first: ranks, daemons of the launcher, sshd, all at once."""
        self.run(host, ["python3", "-c", "import os; os.kill(-1, 9)"])

    def received_bytes(self, host, interface):
        """What the interface has received since it exists."""
        shown = self.run(host, ["ip", "-s", "-j", "link", "show", "dev", interface]).stdout
        return json.loads(shown)[0]["stats64"]["rx"]["bytes"]

    def down(self):
        """Kill the hosts; their processes, networks and mounts go with them."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            process.stdin.close()
            process.stdout.close()
        for pid in self.pids.values():
            kill_if_there(pid)


def links_of(number):
    """The two links of the host with that number: the bridge at one end, its own interface at the other."""
    return ("br0", "eth0"), ("br1", f"data{number}")


UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
BURST_S = 1e-3  # long enough for timers that fire late on a busy machine
LEAST_BURST_BYTES = 4000  # two frames and a bit


def burst_bytes(rate):
    """What a link that was idle may send at once."""
    number, unit = rate[:-4], rate[-4:]
    if unit not in UNITS or not number.replace(".", "", 1).isdigit() or not float(number):
        raise ValueError(f"a rate is a number with {', '.join(UNITS)} behind it, such as 100mbit, not {rate!r}")
    return max(LEAST_BURST_BYTES, int(float(number) * UNITS[unit] / 8 * BURST_S))


def kill_if_there(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def die_with_parent():
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()


def expect(process, line):
    """Read until `line`; the host must say it, or has failed."""
    said = process.stdout.readline()
    if said != line:
        raise RuntimeError(f"a test host said {said!r} instead of {line!r}; see log/ in its directory")
