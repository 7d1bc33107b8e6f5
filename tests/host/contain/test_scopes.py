"""Finding a systemd that gives scopes, asking it, and being refused; a box of fixtures and a busctl of the test's own.

The real thing is in tests/uml/test_systemd_uml.py.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest

from holdfast.host.contain import scopes
from holdfast.host.contain.group import is_populated
from holdfast.host.contain.scopes import (
    Logout,
    ScopeManager,
    ScopeUnavailable,
    build_call,
    find_manager,
    is_systemd,
    join_scope,
    name_scope,
)
from holdfast.host.contain.tree import find_cgroups
from tests.host.families import become
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process
UID = 7
SESSION = "0::/user.slice/user-7.slice/session-3.scope\n"
UNIT = "holdfast-20261120-104501-digits-3fa2.1.scope"
MANAGER = ScopeManager(True, "unix:path=/nowhere/bus", "/nowhere", ("cpu", "memory", "pids"), Logout.HARMLESS)


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """A box with systemd, an account that is logged in, and its bus."""
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/comm").write_text("systemd\n")
    service = tmp_path / "sys/fs/cgroup/user.slice/user-7.slice/user@7.service"
    service.mkdir(parents=True)
    (service / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "run/user/7").mkdir(parents=True)
    (tmp_path / "run/user/7/bus").touch()
    return tmp_path


def find(box: Path, cgroup: str = SESSION) -> ScopeManager:
    return find_manager("anna", uid=UID, root=str(box), cgroup=cgroup)


def kill_at_logout(box: Path) -> None:
    (box / "etc/systemd").mkdir(parents=True)
    (box / "etc/systemd/logind.conf").write_text("[Login]\nKillUserProcesses=yes\n")


def linger(box: Path) -> None:
    (box / "var/lib/systemd/linger").mkdir(parents=True)
    (box / "var/lib/systemd/linger/anna").touch()


def write_stub(tmp_path: Path, script: str) -> str:
    """A program in busctl's place; it writes its words, one call a line, to `calls`."""
    path = tmp_path / "busctl"
    calls = shlex.quote(str(tmp_path / "calls"))
    path.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n{script}\n')
    path.chmod(0o755)
    return str(path)


def test_the_accounts_own_systemd_is_found_with_what_it_can_hand_down(box: Path) -> None:
    found = find(box)
    assert found.user
    assert found.bus == f"unix:path={box}/run/user/7/bus"
    assert found.can_hold(["memory", "cpus", "cpu_weight", "tasks", "open_files"]) == (
        "memory", "cpus", "cpu_weight", "tasks",
    )  # fmt: skip
    service = box / "sys/fs/cgroup/user.slice/user-7.slice/user@7.service"
    # What user@.service delegates before systemd 244.
    (service / "cgroup.controllers").write_text("memory pids\n")
    assert find(box).can_hold(["memory", "cpus"]) == ("memory",)


def test_root_is_given_scopes_by_the_systems_own_manager(box: Path) -> None:
    (box / "run/dbus").mkdir()
    (box / "run/dbus/system_bus_socket").touch()
    (box / "sys/fs/cgroup/system.slice").mkdir()
    (box / "sys/fs/cgroup/system.slice/cgroup.controllers").write_text("cpu memory pids\n")
    found = find_manager("root", uid=0, root=str(box), cgroup=SESSION)
    assert not found.user
    assert found.bus.endswith("/run/dbus/system_bus_socket")
    assert found.logout is Logout.HARMLESS


def test_without_systemd_as_process_1_nothing_is_offered(box: Path) -> None:
    assert is_systemd(root=str(box))
    # A container that shows the host's /run: its process 1 is another one, and so is the process with our number.
    (box / "proc/1/comm").write_text("docker-init\n")
    assert not is_systemd(root=str(box))
    with pytest.raises(ScopeUnavailable, match="not process 1"):
        find(box)
    (box / "proc/1/comm").unlink()
    with pytest.raises(ScopeUnavailable, match="not process 1"):
        find(box)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("sys/fs/cgroup/user.slice/user-7.slice/user@7.service/cgroup.controllers", "no controllers"),
        ("run/user/7/bus", "dbus-user-session"),
        ("run/systemd/system", "not process 1"),
    ],
)
def test_what_is_missing_is_named(box: Path, missing: str, words: str) -> None:
    target = box / missing
    target.rmdir() if target.is_dir() else target.unlink()
    with pytest.raises(ScopeUnavailable, match=words):
        find(box)


def test_an_account_whose_systemd_does_not_run_is_told_so(box: Path) -> None:
    with pytest.raises(ScopeUnavailable, match="systemd of account ben does not run"):
        find_manager("ben", uid=8, root=str(box), cgroup=SESSION)


@pytest.mark.requirement("PROC-24")
def test_PROC_24_what_a_logout_does_to_a_scope(box: Path) -> None:
    assert find(box).logout is Logout.ENDS_SCOPE
    # A terminal of the desktop: we belong to the account's systemd already.
    desktop = "0::/user.slice/user-7.slice/user@7.service/app.slice/vte-spawn-1.scope\n"
    assert find(box, desktop).logout is Logout.NO_WORSE
    kill_at_logout(box)
    assert find(box).logout is Logout.NO_WORSE
    # A cron job is in no session: no logout ends it, whatever is done to sessions.
    assert find(box, "0::/system.slice/cron.service\n").logout is Logout.ENDS_SCOPE
    linger(box)
    assert find(box).logout is Logout.HARMLESS


def test_the_order_is_an_argument_vector_with_no_room_for_a_shell() -> None:
    assert name_scope("20261120-104501-digits-3fa2", 1) == UNIT
    head = (
        "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager",
        "StartTransientUnit", "ssa(sv)a(sa(sv))", UNIT, "fail",
    )  # fmt: skip
    body = (
        "Description", "s", "holdfast run 20261120-104501-digits-3fa2.1", "Delegate", "b", "true",
        "CollectMode", "s", "inactive-or-failed", "PIDs", "au", "1", "42",
    )  # fmt: skip
    assert build_call(UNIT, 42, spare_on_oom=False) == (*head, "4", *body, "0")
    assert build_call(UNIT, 42, spare_on_oom=True) == (*head, "5", *body, "OOMPolicy", "s", "continue", "0")


def test_a_manager_that_hangs_costs_its_deadline_and_leaves_nothing_behind(tmp_path: Path) -> None:
    stub = write_stub(tmp_path, "exec sleep 60")
    with pytest.raises(ScopeUnavailable, match=r"was not done within 0\.[012] s"):
        join_scope(MANAGER, UNIT, patience_s=0.2, program=stub)


def test_a_refusal_is_told_in_systemds_words_and_not_tried_twice(tmp_path: Path) -> None:
    stub = write_stub(tmp_path, 'echo "Call failed: Unit was already loaded" >&2; exit 1')
    with pytest.raises(ScopeUnavailable, match=r"ended with 1: Call failed: Unit was already loaded"):
        join_scope(MANAGER, UNIT, program=stub)
    assert len((tmp_path / "calls").read_text().splitlines()) == 1


@pytest.mark.slow
def test_an_older_systemd_is_asked_again_without_the_oom_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'case "$*" in *OOMPolicy*) echo "Cannot set property OOMPolicy, or unknown property." >&2; exit 1;; esac'
    stub = write_stub(tmp_path, script)
    # It says yes and moves nobody, and that is not waited for.
    monkeypatch.setattr(scopes, "wait_briefly", lambda holds, _: holds())
    with pytest.raises(ScopeUnavailable, match="did not move us"):
        join_scope(MANAGER, UNIT, patience_s=LIMIT_S, program=stub)
    first, second = (tmp_path / "calls").read_text().splitlines()
    assert "OOMPolicy" in first
    assert "OOMPolicy" not in second
    assert f"PIDs au 1 {os.getpid()} " in second


def test_no_program_no_scope(tmp_path: Path) -> None:
    with pytest.raises(ScopeUnavailable, match="could not be started: No such file"):
        join_scope(MANAGER, UNIT, program=str(tmp_path / "absent"))


@pytest.mark.skipif(os.geteuid() != 0, reason="root can make groups here")
def test_on_return_we_are_in_the_scope(tmp_path: Path) -> None:
    place = find_cgroups().unified
    if place is None:
        pytest.skip("no cgroup v2 here")
    scope = f"{place.path}/{UNIT}"
    # What systemd does, by the stub's hands: the pid behind "PIDs au 1".
    script = f'mkdir {scope} && pid="${{*##*PIDs au 1 }}" && echo "${{pid%% *}}" > {scope}/cgroup.procs'
    stub = write_stub(tmp_path, script)

    def join() -> None:
        assert join_scope(MANAGER, UNIT, program=stub).endswith(f"/{UNIT}")

    try:
        assert os.waitpid(become(join), 0)[1] == 0
    finally:
        wait_until(lambda: is_populated(scope) is False)
        os.rmdir(scope)


# --- what is asked of systemd, judged by systemd itself ------------------------------------------------------------


def verify(tmp_path: Path, text: str) -> tuple[int, str]:
    """What systemd says of a unit file; lines about other units of this machine are left out."""
    path = tmp_path / "holdfast-check.service"
    path.write_text(text)
    words = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(path)]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=LIMIT_S, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    said = [line for line in done.stderr.splitlines() if "holdfast-check" in line]
    return done.returncode, "\n".join(said)


def as_unit(call: tuple[str, ...]) -> str:
    """The same properties as a unit file. `PIDs` exists only over the bus: a service starts its processes.

    A scope cannot be written as a file (systemd.scope(5)); a service shares these properties.
    """
    words = list(call[len(scopes.MANAGER) :])
    count, words = int(words[2]), words[3:]
    values = {}
    for _ in range(count):
        name, kind = words[0], words[1]
        size = 2 + int(words[2]) if kind == "au" else 3
        if kind != "au":
            values[name] = words[2]
        words = words[size + (kind == "au") :]
    assert words == ["0"], "no auxiliary units"
    unit = {name: values.pop(name) for name in ("Description", "CollectMode")}
    lines = ["[Unit]", *(f"{name}={value}" for name, value in unit.items())]
    lines += ["[Service]", "ExecStart=/bin/true", *(f"{name}={value}" for name, value in values.items())]
    return "\n".join(lines) + "\n"


@pytest.mark.requirement("B-45", "SYSD-02")
@pytest.mark.parametrize("spare_on_oom", [True, False])
def test_B_45_systemd_takes_every_property_that_we_pass(tmp_path: Path, spare_on_oom: bool) -> None:
    text = as_unit(build_call(UNIT, 4711, spare_on_oom=spare_on_oom))
    assert "Delegate=true" in text
    assert ("OOMPolicy=continue" in text) is spare_on_oom
    assert verify(tmp_path, text) == (0, "")


@pytest.mark.requirement("B-45")
@pytest.mark.parametrize("bad", ["MemoryLimit=1G", "Delegat=true", "OOMPolicy=never", "TasksMax=100 # few"])
def test_B_45_the_look_itself_finds_what_systemd_does_not_take(tmp_path: Path, bad: str) -> None:
    text = as_unit(build_call(UNIT, 4711, spare_on_oom=False))
    said = verify(tmp_path, f"{text}{bad}\n")[1]
    assert "holdfast-check.service:" in said, said
