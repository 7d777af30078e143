"""Everything that the test hosts mount or read: keys, the names of hosts, the configuration of sshd and of SLURM.

write_files(Path("/tmp/c"), ["node1", "node2"], slurm=True, cores=2)
"""

import secrets
import subprocess

from host_init import TMPDIR

HEAD = "head"

SSHD_CONFIG = """\
HostKey {ssh}/host_key
AuthorizedKeysFile {ssh}/id.pub
PidFile /run/sshd.pid
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
StrictModes no
MaxStartups 100
SetEnv TMPDIR={tmpdir}
"""
SSH_CONFIG = """\
IdentityFile {ssh}/id
GlobalKnownHostsFile {ssh}/known_hosts
"""
SLURM_CONF = """\
ClusterName=local
SlurmctldHost=head(10.77.0.254)
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=pmix
ReturnToService=2
JobRequeue=1
KillWait=10
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={directory}/log/slurmctld.log
SlurmdLogFile={directory}/log/slurmd-%n.log
StateSaveLocation={directory}/spool/head
SlurmdSpoolDir={directory}/spool/%n
TmpFS={directory}/tmpfs/%n
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def write_files(directory, names, slurm, cores):
    for path in ("log", "ssh", "spool", *(f"tmpfs/{name}" for name in [HEAD, *names])):
        (directory / path).mkdir(parents=True, exist_ok=True)
    ssh = directory / "ssh"
    for key in ("id", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(ssh / key)], check=True)
    public = " ".join((ssh / "host_key.pub").read_text().split()[:2])
    known = ",".join(word for number, name in enumerate(names, 1) for word in (name, f"10.77.0.{number}"))
    (ssh / "known_hosts").write_text(f"{known},{HEAD} {public}\n")
    (ssh / "sshd_config").write_text(SSHD_CONFIG.format(ssh=ssh, tmpdir=TMPDIR))
    (ssh / "ssh_config").write_text(SSH_CONFIG.format(ssh=ssh))
    addresses = [(f"10.77.0.{number}", name) for number, name in enumerate(names, 1)]
    lines = ["127.0.0.1 localhost", "10.77.0.254 head", *(f"{address} {name}" for address, name in addresses)]
    (directory / "hosts").write_text("\n".join(lines) + "\n")
    if slurm:
        write_slurm(directory, addresses, cores)


def write_slurm(directory, addresses, cores):
    key = directory / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    (directory / "slurm").mkdir()
    nodes = [f"NodeName={name} NodeAddr={address} CPUs={cores} RealMemory=2000" for address, name in addresses]
    names = ",".join(name for _, name in addresses)
    text = SLURM_CONF.format(directory=directory, nodes="\n".join(nodes), names=names)
    (directory / "slurm" / "slurm.conf").write_text(text)
    (directory / "slurm" / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
