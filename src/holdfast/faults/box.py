"""The sandbox of one fault from inside: its environment, its run, its processes, and their end.

Every process of the fault descends from the guard, which is a child subreaper: daemons that leave their parent come
back to it. So what is ended is provably ours by descent, and each is signalled through a pidfd of exactly that process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.host.contain import group as cgroup_group
from holdfast.host.formats.own_bundle import build_own_command
from holdfast.host.process import pidfd, processes
from holdfast.model import wire
from holdfast.model.identity import ProcessId
from holdfast.model.run import SCHEMA

LOOK_S = 0.05
END_S = 15.0
MARK = "HOLDFAST_FAULT"
"""In the environment of every process of a fault: its sandbox."""
ATTEMPT = 1


class RequesterGone(Exception):
    """Whoever asked for the fault is gone, or wants it ended."""


class TookTooLong(Exception):
    """What was waited for did not come."""


def make_environment(box: str, extra: dict[str, str]) -> dict[str, str]:
    """The environment of the fault: its runs, leases, index and temporary files are inside the sandbox."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_SIMULATED")}
    places = {
        "HOLDFAST_RUNS": "runs",
        "HOLDFAST_LEASE_DIR": "leases",
        "HOLDFAST_RULES": "no-rules.toml",
        "XDG_STATE_HOME": "state",
        "XDG_CACHE_HOME": "cache",
        "TMPDIR": "tmp",
    }
    environ.update({name: f"{box}/{place}" for name, place in places.items()})
    return {**environ, MARK: box, "HOLDFAST_FAULT_DISK": f"{box}/disk", **extra}


def make_places(box: str) -> None:
    """The directories that `make_environment` names."""
    for name in ("runs", "state", "cache", "tmp", "leases"):
        os.mkdir(f"{box}/{name}", 0o700)
    # As a lease area has to be; nobody else can enter the sandbox above it.
    os.chmod(f"{box}/leases", 0o1777)  # noqa: S103 - sticky


class Sandbox:
    """One fault's run. `given_up` is readable when whoever asked is gone (its end of a pipe); -1: nobody is watched."""

    def __init__(self, directory: str, environ: dict[str, str], given_up: int) -> None:
        self.directory, self.environ = directory, environ
        self._poller = select.poll()
        if given_up >= 0:
            self._poller.register(given_up, select.POLLIN)
        self._stopped = False
        self.run_dir = ""
        self.run_id = ""

    def stop_waiting(self) -> None:
        """Let every wait end with `RequesterGone`; safe in a signal handler."""
        self._stopped = True

    # ------------------------------------------------------------------------------------------------------ waiting

    def wait(self, condition: Callable[[], bool], limit_s: float, what: str) -> None:
        """Until `condition` is true.

        Raises:
            TookTooLong: not within `limit_s` seconds.
            Abandoned: nobody waits for it any more.
        """
        deadline = time.monotonic() + limit_s
        while not condition():
            if self._stopped or self._poller.poll(LOOK_S * 1000):
                raise RequesterGone
            if time.monotonic() > deadline:
                raise TookTooLong(f"{what}: not within {limit_s:g} s")

    def pause(self, seconds: float) -> None:
        """Let the trouble last."""
        end = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= end, seconds + 1, "the pause")

    def call(self, *words: str, limit_s: float) -> tuple[int, str, str]:
        """Run ``holdfast WORDS`` to its end: exit code, standard output, standard error.

        Raises:
            TookTooLong, Abandoned: as `wait`; the command is ended then.
        """
        out, err = f"{self.directory}/command.out", f"{self.directory}/command.err"
        with open(out, "wb") as out_file, open(err, "wb") as err_file:
            child = subprocess.Popen(
                build_own_command(*words),
                stdin=subprocess.DEVNULL, stdout=out_file, stderr=err_file, cwd=self.directory, env=self.environ,
                start_new_session=True,
            )  # fmt: skip
            try:
                self.wait(lambda: child.poll() is not None, limit_s, f"holdfast {words[0]}")
            finally:
                if child.poll() is None:
                    child.kill()
                    child.wait()
        return child.returncode, read_text(out), read_text(err)

    # ---------------------------------------------------------------------------------------------------- the run

    @property
    def attempt_dir(self) -> str:
        """The directory of the run's only attempt."""
        return wire.attempt_dir(self.run_dir, ATTEMPT)

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file of the attempt; empty while there is none."""
        try:
            value = json.loads(read_text(f"{self.attempt_dir}/{name}"))
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def job(self) -> ProcessId | None:
        """The job's first process, while it lives."""
        try:
            value = self.read(wire.STATE)["state"]["job"]["process"]
            return wire.decode(ProcessId, value)
        except (KeyError, TypeError, wire.WireError):
            return None

    def has_ended(self) -> bool:
        """Whether the exit record is there and the supervisor has left; without a record, whether all have died."""
        recorded = os.path.exists(f"{self.attempt_dir}/{wire.EXIT}")
        try:
            state = self.read(wire.STATE)
            watchers = [state["supervisor"], *filter(None, [state["state"].get("keeper")])]
            alive = any(processes.is_alive(wire.decode(ProcessId, value)) for value in watchers)
        except (KeyError, TypeError, wire.WireError):
            return recorded
        job = self.job()
        return not alive and (recorded or (job is not None and not processes.is_alive(job)))

    # ------------------------------------------------------------------------------------------------------- the end

    def end_run(self) -> None:
        """Let holdfast end the run the way it does; what stays is for `end_all`."""
        if not self.run_dir or self.has_ended():
            return
        words = build_own_command("stop", "--now", "--wait", "10s", self.run_id)
        with open(os.devnull, "r+b") as null:
            child = subprocess.Popen(words, stdin=null, stdout=null, stderr=null, env=self.environ, cwd="/")
            try:
                child.wait(END_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        deadline = time.monotonic() + END_S
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(LOOK_S)

    def end_all(self) -> list[int]:
        """End every descendant; the pids of those that even KILL does not end."""
        deadline = time.monotonic() + END_S
        while True:
            _reap_all()
            left = list_descendants(os.getpid())
            if not left or time.monotonic() > deadline:
                break
            for pid in left:
                found = processes.identify(pid)
                # Asked again now that the identity is pinned: still ours by descent, or somebody else's number.
                if found is not None and pid in list_descendants(os.getpid()):
                    pidfd.send_signal(found, signal.SIGKILL)
            time.sleep(LOOK_S / 5)
        self.remove_groups()
        return left

    def remove_groups(self) -> None:
        """Groups that a killed supervisor has left: only those that this run's manifest names after the run."""
        group = self.read(wire.MANIFEST).get("cgroup") if self.run_dir else None
        if not isinstance(group, dict) or not str(group.get("name", "")).startswith(f"{self.run_id}."):
            return
        v1 = group.get("v1")
        paths = [group.get("unified"), *(v1.values() if isinstance(v1, dict) else ())]
        for path in paths:
            if isinstance(path, str) and path.endswith(f"/{group['name']}"):
                cgroup_group.remove_tree(path)


def list_descendants(pid: int) -> list[int]:
    """All descendants, parents first; zombies included. Source: proc_tid_children(5)."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop(0)
        try:
            tasks = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        for task in tasks:
            children = [int(word) for word in read_text(f"/proc/{parent}/task/{task}/children").split()]
            found += children
            waiting += children
    return found


def read_states(pids: Sequence[int]) -> list[str]:
    """The states of all threads of these processes, as in /proc/PID/task/*/stat."""
    states = []
    for pid in pids:
        try:
            tasks = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for task in tasks:
            tail = read_text(f"/proc/{pid}/task/{task}/stat").rpartition(")")[2].split()
            states += tail[:1]
    return states


def read_text(path: str) -> str:
    """A file's text, empty when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def read_oom_kills() -> int:
    """The host's counter of processes killed for lack of memory since boot; -1 when it cannot be read."""
    for line in read_text("/proc/vmstat").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return -1


def encode_line(value: dict[str, object]) -> str:
    """One line of JSON that states its schema."""
    return json.dumps({"schema": SCHEMA, **value})


def _reap_all() -> None:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
