"""A private Slurm cluster on this machine: real daemons, virtual nodes, fake GPUs, no accounting.

Needs the Debian or Ubuntu packages slurm-wlm and munge, and root; not systemd. All of it lives in
one folder and listens on the loopback interface only. A node can crash, lose its slurmd while the
jobs live on, and come back.
"""

import getpass
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# a requeued job waits for cred_expire (at least 5 s) before it may start again
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
PropagateResourceLimits=NONE
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=128
GresTypes=gpu
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=50000,bf_interval=2
SlurmdTimeout=6
SlurmctldTimeout=30
InactiveLimit=0
KillWait=2
MessageTimeout=10
MinJobAge=300
FirstJobId={first}
MaxArraySize=1001
MaxJobCount=20000
ReturnToService=2
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=1-00:00:00 PriorityTier=10 PreemptMode=OFF
PartitionName=low Nodes=ALL MaxTime=2:00:00 PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
PartitionName=killed Nodes=ALL MaxTime=2:00:00 PriorityTier=1 PreemptMode=CANCEL
"""


def missing() -> str | None:
    """Why no cluster can be had here, or None."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"no Slurm here ({', '.join(absent)} missing: apt-get install slurm-wlm munge)"
    return None if os.geteuid() == 0 else "a test cluster needs root"


class Cluster:
    """slurmctld, munged and one slurmd a node."""

    def __init__(self, folder: Path, nodes: int = 3, cpus: int = 2, gpus: int = 2) -> None:
        self.folder = folder
        self.nodes = [f"n{i + 1}" for i in range(nodes)]
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self.running = False
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._configure(cpus, gpus)

    def _configure(self, cpus: int, gpus: int) -> None:
        for name in ("state", "spool", "dev"):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        port = _free_ports(len(self.nodes) + 1)
        host = socket.gethostname().split(".")[0]
        lines = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port + 1 + i} "
            f"CPUs={cpus} RealMemory=4096 Gres=gpu:{gpus} State=UNKNOWN"
            for i, name in enumerate(self.nodes)
        ]
        for i in range(gpus):
            os.mknod(self.folder / "dev" / f"gpu{i}", 0o20666, os.makedev(1, 3))
        resources = f"AutoDetect=off\nName=gpu File={self.folder}/dev/gpu[0-{gpus - 1}]\n"
        (self.folder / "gres.conf").write_text(resources)
        facts = {"folder": self.folder, "host": host, "port": port, "user": getpass.getuser()}
        facts |= {"first": random.randrange(1000, 10_000_000), "nodes": "\n".join(lines)}
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(**facts))

    def start(self) -> None:
        """Start all daemons and wait until every node is idle."""
        at = self.folder
        self._spawn(
            "munged",
            f"munged --foreground --force --socket={at}/munge.socket --key-file={at}/munge.key "
            f"--log-file={at}/munged.log --pid-file={at}/munged.pid --seed-file={at}/munged.seed",
        )
        self._until(lambda: (at / "munge.socket").exists(), "munged")
        self.start_controller()
        for name in self.nodes:
            self.start_node(name)
        self._until(lambda: self._idle() == len(self.nodes), "slurmd")
        self.running = True

    def start_controller(self) -> None:
        """Start slurmctld, with the state that an earlier one left."""
        self._spawn("slurmctld", "slurmctld -D")
        self._until(lambda: " UP" in f" {self.ask('scontrol', 'ping')}", "slurmctld")

    def start_node(self, name: str) -> None:
        self._spawn(name, f"slurmd -D -N {name}", {"TEST_NODE": f"{self.folder}:{name}"})

    def kill_slurmd(self, name: str) -> None:
        """Kill a node's slurmd, or another daemon; its jobs live on."""
        if name in self.daemons:
            self.daemons[name].kill()
            self.daemons[name].wait()

    def kill_node(self, name: str) -> None:
        """Crash a node: slurmd, steps and jobs."""
        self.kill_slurmd(name)
        for _ in range(3):  # what is being started meanwhile
            for pid in self.processes(name):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def give_up(self, name: str) -> None:
        """Have slurmctld take a node for dead at once, as it does after a time of silence."""
        self.ask("scontrol", "update", f"nodename={name}", "state=down", "reason=silent")

    def processes(self, name: str | None = None) -> list[int]:
        """The processes of jobs on a node, or on any: slurmstepd and all below it."""
        conf = f"SLURM_CONF={self.environment['SLURM_CONF']}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                environment = set((path / "environ").read_bytes().split(b"\0"))
            except OSError:
                continue
            names = [n for n in self.nodes if name in (n, None)]
            slurmds = {f"TEST_NODE={self.folder}:{n}".encode() for n in names}
            tasks = {f"SLURMD_NODENAME={n}".encode() for n in names}
            if environment & slurmds or (conf in environment and environment & tasks):
                found.append(int(path.name))
        return sorted(set(found) - {d.pid for d in self.daemons.values()})

    def ask(self, *command: str) -> str:
        """What a Slurm command prints, empty if it fails."""
        env = os.environ | self.environment
        result = subprocess.run(command, env=env, capture_output=True, text=True)
        return result.stdout if result.returncode == 0 else ""

    def empty(self) -> None:
        """Cancel all jobs, bring all nodes back and wait until they are idle."""
        for name in self.nodes:
            if self.daemons[name].poll() is not None:
                self.start_node(name)
        for name in self.nodes:
            self.ask("scontrol", "update", f"nodename={name}", "state=resume")
        self.ask("scancel", f"--user={getpass.getuser()}")
        self._until(lambda: not self.ask("squeue", "-h").strip(), "slurmctld", 60)
        self._until(lambda: self._idle() == len(self.nodes), "slurmd", 60)

    def stop(self) -> None:
        self.running = False
        self.ask("scancel", f"--user={getpass.getuser()}")
        for name in [*self.nodes, "slurmctld", "munged"]:
            self.kill_slurmd(name)
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _idle(self) -> int:
        return self.ask("sinfo", "-h", "-N", "-p", "main", "-o", "%T").split().count("idle")

    def _spawn(self, name: str, command: str, more: dict[str, str] | None = None) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            streams: Any = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
            env = os.environ | self.environment | (more or {})
            self.daemons[name] = subprocess.Popen(
                command.split(), **streams, start_new_session=True, env=env
            )

    def _until(self, condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                log = (self.folder / "slurmctld.log").read_text()[-2000:]
                raise RuntimeError(f"{what} is not ready after {seconds:.0f} s\n{log}")
            time.sleep(0.1)


def _free_ports(count: int) -> int:
    """The first of `count` free ports in a row, below those that outgoing connections use."""
    for _ in range(100):
        first = random.SystemRandom().randrange(20_000, 30_000)
        with suppress(OSError):
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first
    raise RuntimeError(f"no {count} free ports in a row")
