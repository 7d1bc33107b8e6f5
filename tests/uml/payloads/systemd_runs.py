"""Real runs of an account on a box where systemd is process 1; root's payload, which opens the account's logins.

Usage: systemd_runs.py SCENARIO... Prints what was seen as JSON, by scenario. A login is `runuser -l`: PAM, the login
manager, a session scope that belongs to root, and the account's own systemd.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from holdfast.host.contain.create import create_group
from holdfast.host.contain.scopes import find_manager, join_scope, name_scope
from holdfast.model.job import Limits
from tests.uml.machine import REPOSITORY
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

ACCOUNT = pwd.getpwuid(1000)
SCENARIO = "none"
CGROUPS = "/sys/fs/cgroup"
MANAGER = f"{CGROUPS}/user.slice/user-1000.slice/user@1000.service"
# The job tells its place, then waits until somebody opens the gate.
WAITING_JOB = ("sh", "-c", 'cat /proc/self/cgroup; echo ready; read -r _ < "$0"')
HOG = (sys.executable, "-I", "-S", "-c", "data = bytearray(160 << 20); data[::4096] = b'x' * len(data[::4096])")


def runs() -> str:
    return f"{ACCOUNT.pw_dir}/{SCENARIO}-runs"


def gate() -> str:
    return f"{ACCOUNT.pw_dir}/{SCENARIO}-gate"


def login(*words: str) -> subprocess.CompletedProcess[str]:
    """One login of the account that runs one command and ends."""
    environment = (f"PYTHONPATH={REPOSITORY}/src", "PYTHONDONTWRITEBYTECODE=1", f"HOLDFAST_RUNS={runs()}")
    command = ("runuser", "-l", ACCOUNT.pw_name, "-c", 'exec "$@"', "--", "sh", "env", *environment, *words)
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def holdfast(*words: str) -> subprocess.CompletedProcess[str]:
    """Holdfast as the account types it after logging in."""
    return login(sys.executable, "-m", "holdfast", *words)


def run_detached(options: tuple[str, ...], job: tuple[str, ...] = ()) -> dict[str, Any]:
    """Start a run from a login that is over when this returns, and tell what is known of it."""
    done = holdfast(
        "run",
        "-d",
        "--gpus",
        "0",
        "--disk-min-free",
        "1MB",
        "--disk-min-free-inodes",
        "10",
        *options,
        "--",
        *(job or (*WAITING_JOB, gate())),
    )
    names = os.listdir(runs())
    assert len(names) == 1, (names, done.stdout, done.stderr)
    return {"code": done.returncode, "words": done.stderr, "id": names[0], "scope": f"holdfast-{names[0]}.1.scope"}


def read(run: dict[str, Any], name: str) -> Any:
    with open(f"{runs()}/{run['id']}/attempts/1/{name}") as file:
        text = file.read()
    return [json.loads(line) for line in text.splitlines()] if name.endswith("jsonl") else json.loads(text)


def describe(run: dict[str, Any]) -> dict[str, Any]:
    """What the run's own files say of its place and its limits."""
    manifest, events = read(run, "manifest.json"), read(run, "events.jsonl")
    with open(f"{runs()}/{run['id']}/attempts/1/output.log") as file:
        place = next((line for line in file.read().splitlines() if line.startswith("0::")), "")
    supervisor = read(run, "state.json")["supervisor"]["pid"]
    return {
        "place": place.replace(run["id"], "ID"),
        "supervisor": read_place(supervisor).replace(run["id"], "ID"),
        "mechanisms": {one["name"]: one["mechanism"] for one in manifest["limits"]},
        "findings": [event["data"]["finding"] for event in events if event["event"] == "scope"],
    }


def read_place(pid: int | str) -> str:
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            return file.read().strip()
    except OSError:
        return ""


def has_ended(run: dict[str, Any]) -> bool:
    return os.path.exists(f"{runs()}/{run['id']}/attempts/1/exit.json")


def open_gate() -> None:
    with open(gate(), "w") as file:
        file.write("go\n")


def wait_ready(run: dict[str, Any]) -> None:
    ready = is_true(lambda: "ready" in read_attempt(run, "output.log"))
    assert ready, f"{run}\n{tell(run)}"


def is_true(condition: Callable[[], bool]) -> bool:
    try:
        return bool(wait_until(condition))
    except AssertionError:
        return False


def read_attempt(run: dict[str, Any], name: str) -> str:
    try:
        with open(f"{runs()}/{run['id']}/attempts/1/{name}") as file:
            return file.read()
    except OSError:
        return ""


def tell(run: dict[str, Any]) -> str:
    """All that the attempt has written, for whoever must find out why a scenario failed."""
    return "\n".join(read_attempt(run, name) for name in ("events.jsonl", "supervisor.log", "output.log"))


def scope_is_gone(run: dict[str, Any]) -> bool:
    return not any(run["scope"] in directories for _, directories, _ in os.walk(CGROUPS))


def finish(run: dict[str, Any]) -> dict[str, Any]:
    wait_until(lambda: has_ended(run))
    gone = bool(wait_until(lambda: scope_is_gone(run)))
    exit_record = read(run, "exit.json")
    ended = {name: exit_record[name] for name in ("outcome", "exit_code", "ending")}
    return {**ended, "gone": gone}


def sessions() -> list[str]:
    return [name for name in os.listdir("/run/systemd/sessions") if not name.endswith(".ref")]


def linger() -> None:
    subprocess.run(["loginctl", "enable-linger", ACCOUNT.pw_name], check=True)


def survives_logout() -> dict[str, Any]:
    """Lingering account, a box that kills sessions: limits by the scope, and the run goes on after the logout."""
    linger()
    run = run_detached(("--limit-memory", "64MiB", "--limit-cpus", "0.5", "--limit-tasks", "50"))
    wait_ready(run)
    wait_until(lambda: not sessions())
    found = {**run, **describe(run), "alive_after_logout": not has_ended(run)}
    found["login"] = [one["level"] for one in read(run, "preflight.json")["findings"] if one["id"] == "login"]
    found["memory_max"] = read_limit(run, "memory.max")
    open_gate()
    return {**found, **finish(run), "left": sessions()}


def read_limit(run: dict[str, Any], name: str) -> str:
    with open(f"{read(run, 'manifest.json')['cgroup']['unified']}/{name}") as file:
        return file.read().strip()


def rescued() -> dict[str, Any]:
    """As above, without any limit: the scope is taken for the sake of the logout."""
    linger()
    run = run_detached(())
    wait_ready(run)
    wait_until(lambda: not sessions())
    found = {**run, **describe(run), "alive_after_logout": not has_ended(run)}
    # No limit rests on its group, so the job joins after it has begun, and perhaps after it told its place.
    job = read(run, "state.json")["state"]["job"]["process"]["pid"]
    wait_until(lambda: "/holdfast/" in read_place(job), what="it joins")
    found["place"] = read_place(job).replace(run["id"], "ID")
    open_gate()
    return {**found, **finish(run)}


def stays() -> dict[str, Any]:
    """No linger, a box that leaves sessions alone: no scope, the watchdog, and the run outlives the logout."""
    run = run_detached(("--limit-memory", "64MiB"))
    wait_ready(run)
    found = {**run, **describe(run), "alive_after_logout": not has_ended(run)}
    found["preflight"] = [one for one in read(run, "preflight.json")["findings"] if one["id"] in ("scope", "limits")]
    open_gate()
    return {**found, **finish(run)}


def only_there() -> dict[str, Any]:
    """No linger, a limit that nothing else holds: the scope with a warning, and at logout a stop that is on record."""
    run = run_detached(("--limit-cpu-weight", "50"))
    wait_ready(run)
    found = {**run, **describe(run)}
    return {**found, **finish(run)}


def hog() -> dict[str, Any]:
    """The kernel ends the job for its memory; the supervisor in the same scope lives to tell it."""
    linger()
    run = run_detached(("--limit-memory", "32MiB"), HOG)
    found = finish(run)
    return {**run, **describe(run), **found, "failure": read_attempt(run, "failure.md")}


def hung() -> dict[str, Any]:
    """The account's systemd does not answer: the run starts without a scope, a few seconds later."""
    linger()
    wait_until(lambda: os.path.exists("/run/user/1000/bus") and os.path.exists(f"{MANAGER}/init.scope"))
    login("busctl", "--user", "status", "org.freedesktop.systemd1")  # the bus is activated and knows its systemd
    with open(f"{MANAGER}/init.scope/cgroup.procs") as file:
        pids = [int(line) for line in file]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    # The test's own machine: nothing else runs as this account.
    run = run_detached(("--limit-memory", "64MiB"))
    wait_ready(run)
    found = {**run, **describe(run)}
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    open_gate()
    return {**found, **finish(run)}


def as_root() -> dict[str, Any]:
    """Root is given a scope by the system's own manager, and it goes with its last process."""
    unit = name_scope("20261120-104501-root-0000", 1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        place = join_scope(find_manager("root"), unit)
        group = create_group("20261120-104501-root-0000.1", Limits(memory_bytes=64 * 1024**2))
        assert group is not None
        os.write(writer, json.dumps({"place": place, "enforced": group.enforced, "removed": group.remove()}).encode())
        os._exit(0)
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0
    found: dict[str, Any] = json.loads(os.read(reader, 65536))
    return {**found, "gone": bool(wait_until(lambda: scope_is_gone({"scope": unit})))}


SCENARIOS = {one.__name__: one for one in (as_root, survives_logout, rescued, stays, only_there, hog, hung)}

if __name__ == "__main__":
    found = {}
    for SCENARIO in sys.argv[1:]:
        os.mkfifo(gate())
        os.chown(gate(), 1000, 1000)
        found[SCENARIO] = SCENARIOS[SCENARIO]()
    print(json.dumps(found))
