"""A real Slurm on loopback: munged, slurmctld, and two nodes with four made-up cards each; no systemd.

    def test_it(slurm):                            # SLURM_CONF is set: sbatch, squeue, scontrol are those of this one
        job = slurm.sbatch("--wrap", "hostname")

Everything lives in one PID namespace, whose end is the end of all of it, also when pytest is killed. Two nodes of one
kernel would share more than two machines do: each has process and mount namespaces, a host name and a boot id of its
own, so that no reader takes a process there for one of its own table. With the tracker `cgroup` each has control groups
of its own too, in which its slurmd keeps those of its jobs. It keeps accounts only where it is told to (`accounting`).

`slurm` is one for each worker; who changes it (`stop_node`, `stop_controller`) makes one with `Slurm.started(...)`.
`on(*TRACKERS)` has a test that asks for `slurm` run with each.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from tests.ports import find_free_ports
from tests.waiting import LIMIT_S, LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Test = TypeVar("Test", bound="Callable[..., None]")
NODES = ("n1", "n2")
CARDS = 4
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "unshare", "setpriv")
UP_S = LIMIT_S
"""How long all of it may take to come up on a busy machine; it takes 2 s on an idle one."""

SLURM_CONF = """\
ClusterName=hf
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={root}/munge.socket,cred_expire=5
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
MpiDefault=none
ProctrackType=proctrack/{tracker}
TaskPlugin=task/{task}
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
KillWait={kill_wait_s}
ReturnToService=2
SlurmdTimeout=10
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
DefMemPerCPU=100
MinJobAge={min_job_age_s}
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_s} MaxTime=60
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=60
{options}
"""

ACCOUNTING_CONF = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={root}/munge.socket
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
"""
SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
LogFile={root}/slurmdbd.log
PidFile={root}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
"""
ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "sacct")

CGROUP_CONF = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainRAMSpace=yes
ConstrainSwapSpace=yes
"""
TRACKERS = ("linuxproc", "cgroup")
CLUSTERS = {"linuxproc": "slurm_cluster", "cgroup": "slurm_cgroup_cluster"}
"""The fixture of each."""
CONTROLLERS = ("freezer", "memory", "cpuset", "devices", "cpuacct", "cpu")
"""What Slurm's plugin for version 1 keeps groups in."""

# $0 is the directory; the process of this script is the first of its namespace, and the others end with it.
START = """\
set -e
mount -t proc proc /proc
for name in passwd group; do [ ! -f "$0/etc/$name" ] || mount --bind "$0/etc/$name" "/etc/$name"; done
munged --force --foreground --socket="$0/munge.socket" --key-file="$0/munge.key" --pid-file="$0/munged.pid" \\
    --log-file="$0/munged.log" --seed-file="$0/munge.seed" --num-threads=2 &
while [ ! -S "$0/munge.socket" ]; do sleep 0.02; done
if [ -f "$0/slurmdbd.conf" ]; then
    mariadbd --no-defaults --user=root --datadir="$0/database" --socket="$0/database.socket" --skip-networking \\
        --skip-grant-tables --pid-file="$0/mariadbd.pid" >"$0/mariadbd.log" 2>&1 &
    while [ ! -S "$0/database.socket" ]; do sleep 0.02; done
    MYSQL_UNIX_PORT="$0/database.socket" slurmdbd -D &
fi
while :; do
    [ -e "$0/stopped" ] || slurmctld -D -f "$0/slurm.conf" || :
    sleep 0.1
done &
for node in "$@"; do
    unshare --pid --mount --uts --fork --kill-child=KILL sh "$0/node.sh" "$0" "$node" &
    echo $! > "$0/$node.keeper"
done
wait
"""
NODE = """\
set -e
if [ -d "$1/cgroups" ] && [ -z "$IN_GROUPS" ]; then
    for controller in $(ls "$1/cgroups"); do
        group="/sys/fs/cgroup/$controller/${1##*/}.$2"
        mkdir "$group"
        if [ "$controller" = cpuset ]; then
            for name in cpuset.cpus cpuset.mems; do cat "/sys/fs/cgroup/cpuset/$name" > "$group/$name"; done
        fi
        echo $$ > "$group/cgroup.procs"
    done
    IN_GROUPS=yes exec unshare --cgroup sh "$0" "$@"
fi
for controller in $(ls "$1/cgroups" 2>/dev/null); do
    mount --bind "/sys/fs/cgroup/$controller/${1##*/}.$2" "/sys/fs/cgroup/$controller"
done
mount -t proc proc /proc
mount --bind "$1/$2.boot_id" /proc/sys/kernel/random/boot_id
hostname "$2"
exec slurmd -D -N "$2" -f "$1/slurm.conf"
"""


class Slurm:
    """One Slurm. `root` is its directory, `conf` its configuration: what SLURM_CONF is to be set to."""

    def __init__(
        self,
        *,
        options: str = "",
        kill_wait_s: int = 5,
        grace_s: int = 0,
        min_job_age_s: int = 300,
        accounts: Path | None = None,
        tracker: str = TRACKERS[0],
        accounting: bool = False,
    ) -> None:
        """Make its files; `start` starts it.

        `options` are more lines of slurm.conf, `accounts` a directory with the passwd and group of its machines,
        `tracker` is how slurmd knows a job's processes. `accounting`: it has a slurmdbd with a database of its own.
        """
        self.root = Path(tempfile.mkdtemp(prefix="hf-slurm-", dir="/tmp"))
        self.root.chmod(0o755)
        self.conf = self.root / "slurm.conf"
        self._process: subprocess.Popen[bytes] | None = None
        ports = find_free_ports(2 + len(NODES))
        if accounting:
            options += "\n" + ACCOUNTING_CONF.format(root=self.root, port=ports[-1])
            (self.root / "database").mkdir()
            (self.root / "slurmdbd.conf").write_text(SLURMDBD_CONF.format(root=self.root, port=ports[-1]))
            (self.root / "slurmdbd.conf").chmod(0o600)
        names = [
            f"NodeName={node} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=8000 Gres=gpu:{CARDS} State=UNKNOWN"
            for node, port in zip(NODES, ports[1:-1], strict=True)
        ]
        self.conf.write_text(
            SLURM_CONF.format(
                root=self.root,
                host=socket.gethostname().split(".")[0],
                port=ports[0],
                nodes="\n".join(names),
                kill_wait_s=kill_wait_s,
                grace_s=grace_s,
                min_job_age_s=min_job_age_s,
                options=options,
                tracker=tracker,
                task="cgroup" if tracker == "cgroup" else "none",
            )
        )
        if tracker == "cgroup":
            (self.root / "cgroup.conf").write_text(CGROUP_CONF)
            for controller in CONTROLLERS:
                (self.root / "cgroups" / controller).mkdir(parents=True)
        cards = f"{self.root}/card[0-{CARDS - 1}]"
        (self.root / "gres.conf").write_text(f"NodeName={NODES[0]},{NODES[1]} Name=gpu File={cards}\n")
        for index in range(CARDS):
            os.mknod(self.root / f"card{index}", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        for node in NODES:
            (self.root / node).mkdir()
            (self.root / f"{node}.boot_id").write_text(f"{uuid.uuid4()}\n")
        (self.root / "state").mkdir()
        if accounts is not None:
            (self.root / "etc").mkdir()
            for name in ("passwd", "group"):
                shutil.copy(accounts / name, self.root / "etc" / name)
        key = self.root / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        (self.root / "node.sh").write_text(NODE)

    @classmethod
    @contextlib.contextmanager
    def started(
        cls,
        *,
        options: str = "",
        kill_wait_s: int = 5,
        grace_s: int = 0,
        min_job_age_s: int = 300,
        accounts: Path | None = None,
        tracker: str = TRACKERS[0],
        accounting: bool = False,
    ) -> Iterator[Slurm]:
        """One that runs until the end of the block."""
        made = cls(
            options=options,
            kill_wait_s=kill_wait_s,
            grace_s=grace_s,
            min_job_age_s=min_job_age_s,
            accounts=accounts,
            tracker=tracker,
            accounting=accounting,
        )
        try:
            made.start()
            yield made
        finally:
            made.stop()
            shutil.rmtree(made.root, ignore_errors=True)

    def start(self) -> None:
        """Start all of it, and wait until both nodes take jobs."""
        alone = ("setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--mount", "--fork", "--kill-child=KILL")
        # The word behind the script is its $0.
        command = [*alone, "sh", "-c", START, str(self.root), *NODES]
        with open(self.root / "start.log", "ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environ(), start_new_session=True
            )
        wait_until(self._is_up, UP_S, what=f"Slurm is up; see {self.root}")

    def stop(self) -> None:
        """End all of it, jobs included."""
        if self._process is not None:
            # `unshare` ends the first process of the namespace with itself, and the kernel all others.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            wait_until(lambda: not self.list_processes(), what="everything of Slurm is gone")
            wait_until(self._remove_groups, what="its control groups are empty")

    def _remove_groups(self) -> bool:
        """Remove the nodes' control groups, the deepest first; whether none is left."""
        tops = glob.glob(f"/sys/fs/cgroup/*/{self.root.name}.*")
        for directory, _, _ in (found for top in tops for found in os.walk(top, topdown=False)):
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        return not any(map(os.path.exists, tops))

    def list_processes(self) -> list[int]:
        """The pids, as seen from here, of what has this Slurm's directory in its command line."""
        found, mark = [], os.fsencode(self.root)
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
                if mark in file.read() and int(name) != os.getpid():
                    found.append(int(name))
        return found

    def _environ(self) -> dict[str, str]:
        """Of the daemons: nothing of the test that happens to start them."""
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SLURM_CONF": str(self.conf), "HOME": "/root"}

    def _is_up(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            pytest.fail(f"Slurm did not come up:\n{(self.root / 'start.log').read_text()}")
        done = self.call("sinfo", "-h", "-N", "-o", "%t", code=None)
        # A line for each node in each partition.
        return set(done.split()) == {"idle"} and len(done.split()) >= 2 * len(NODES)

    # ------------------------------------------------------------------------------------------------------ use it

    def call(self, *words: str, code: int | None = 0) -> str:
        """Run one of Slurm's commands; its output. `code` None: whatever it ends with."""
        environ = {**os.environ, "SLURM_CONF": str(self.conf)}
        done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
        assert code is None or done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout

    def sbatch(self, *words: str) -> str:
        """Submit a job that writes to nowhere unless told; its id."""
        return self.call("sbatch", "--parsable", "--output=/dev/null", *words).strip()

    def show(self, job: str) -> dict[str, str]:
        """What ``scontrol show job`` has of a job; empty when it knows none."""
        text = self.call("scontrol", "show", "job", "-o", job, code=None)
        # The first of a name: a comment may hold another.
        return dict(reversed(re.findall(r"(\S+?)=(\S*)", text)))

    def wait_for(self, job: str, *states: str, timeout_s: float = LONG_S) -> dict[str, str]:
        """Wait until a job is in one of these states; what is known of it then."""

        def look() -> dict[str, str]:
            found = self.show(job)
            return found if found.get("JobState") in states else {}

        return wait_until(look, timeout_s, what=f"job {job} is {' or '.join(states)}")

    def stop_controller(self) -> None:
        """Kill slurmctld, as a failure of its machine does."""
        (self.root / "stopped").touch()
        for pid in self._find_daemons("slurmctld"):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self._find_daemons("slurmctld"), what="slurmctld is gone")

    def start_controller(self) -> None:
        """Start it again, and wait until it answers."""
        (self.root / "stopped").unlink()
        wait_until(lambda: "UP" in self.call("scontrol", "ping", code=None), UP_S, what="slurmctld answers")

    def call_in_node(self, node: str, *words: str) -> None:
        """Run a command among the mounts of a node."""
        (pid,) = self._find_daemons("slurmd", "-D", "-N", node)
        subprocess.run(("nsenter", f"--target={pid}", "--mount", *words), check=True)

    def _find_daemons(self, *words: str) -> list[int]:
        """The pids of processes whose command line begins so."""
        found, begin = [], "\0".join(words).encode() + b"\0"
        for pid in self.list_processes():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
                if file.read().startswith(begin):
                    found.append(pid)
        return found

    def stop_node(self, node: str) -> None:
        """Take a node away as a power cut does: its slurmd, its jobs, all at once."""
        for pid in self.list_processes():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
                if words[0] == b"unshare" and words[-4].endswith(b"/node.sh") and words[-2] == node.encode():
                    os.kill(pid, signal.SIGKILL)


def _skip_reason() -> str:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return "" if os.geteuid() == 0 else "slurmd and its namespaces need root"


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[Slurm]:
    """One that is up, for all tests of this worker."""
    if reason := _skip_reason():
        pytest.skip(reason)
    with Slurm.started() as made:
        yield made


@pytest.fixture(scope="session")
def slurm_cgroup_cluster() -> Iterator[Slurm]:
    """One that is up, whose slurmd knows a job's processes by control groups."""
    if reason := _skip_reason():
        pytest.skip(reason)
    if not os.path.isdir("/sys/fs/cgroup/freezer"):
        pytest.skip("control groups of version 1 are not mounted here")
    with Slurm.started(tracker="cgroup") as made:
        yield made


def on(*trackers: str) -> Callable[[Test], Test]:
    """Have a test's `slurm` be one with each of these trackers (`TRACKERS`)."""

    def decorate(test: Test) -> Test:
        # Those of the session are up before anybody looks at what a test leaves behind.
        up = pytest.mark.usefixtures(*(CLUSTERS[one] for one in trackers))
        for mark in (pytest.mark.parametrize("slurm", trackers, indirect=True), up):
            mark(test)
        return test

    return decorate


@pytest.fixture
def slurm(request: pytest.FixtureRequest, slurm_cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """The Slurm of this worker, which commands of this test find; afterwards no job of it is left."""
    made: Slurm = request.getfixturevalue(CLUSTERS[request.param]) if hasattr(request, "param") else slurm_cluster
    monkeypatch.setenv("SLURM_CONF", str(made.conf))
    yield made
    made.call("scancel", "--user=root", code=None)
    made.call("scancel", "--user=root", "--signal=KILL", "--full", code=None)
    wait_until(lambda: not made.call("squeue", "-h", "-t", "all", "-o", "%T", "--states=PD,R,CG,S").strip())
