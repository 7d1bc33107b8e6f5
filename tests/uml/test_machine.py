"""The user-mode Linux machine itself: reboots, power cuts, cgroups, refusals, and what this kernel can do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.uml.machine import REPOSITORY, Cgroups, Guest, MachineError, Mount, find_kernel, list_session
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.uml.machine import Machine, Result

pytestmark = [pytest.mark.uml, pytest.mark.process, pytest.mark.timeout(300)]
USER = 1000


def parse(result: Result) -> dict[str, Any]:
    assert result.code == 0, (result.stderr, result.console)
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.slow
def test_each_run_is_a_new_boot_that_finds_what_the_last_one_wrote(machine: Machine) -> None:
    write = 'echo shared > "$0/note"; echo disk > "$1/note"; echo lost > /tmp/note; exit 7'
    first = machine.run(["sh", "-c", write, machine.shared, str(machine.disk)])
    second = machine.run(["sh", "-c", 'cat "$0/note" "$1/note" /tmp/note', machine.shared, str(machine.disk)])
    assert first.code == 7
    assert second.boot_id != first.boot_id
    assert second.stdout == "shared\ndisk\n"
    assert "/tmp/note" in second.stderr
    with open("/proc/sys/kernel/random/boot_id") as file:
        assert file.read().strip() not in {first.boot_id, second.boot_id}


def test_power_cut_keeps_what_was_synced_and_loses_the_rest(machine: Machine) -> None:
    script = 'cd "$0"; echo kept > kept; sync; echo lost > lost; echo written; sleep 60'
    boot = machine.start(["sh", "-c", script, str(machine.disk)])
    boot.wait_for_output("written")
    boot.power_cut()
    assert not boot.running
    after = machine.run(["sh", "-c", 'cd "$0"; cat kept; ls', str(machine.disk)])
    assert after.code == 0, after.stderr
    assert after.stdout.split() == ["kept", "kept", "lost+found"]


@pytest.mark.slow
@pytest.mark.parametrize("uid", [0, USER])
def test_cgroup_v2_kills_a_hog_and_empties_a_tree(machine: Machine, uid: int) -> None:
    found = parse(machine.run(["python", "cgroup_v2.py"], Guest(uid=uid, delegated=uid != 0)))
    assert found["uid"] == found["owner"] == uid
    assert found["hog"] == {"code": -signal.SIGKILL, "oom_kill": 1}
    assert found["tree"] == {"before": 6, "after": 0}


@pytest.mark.slow
def test_user_without_delegation_full_disk_and_read_only_disk_are_refused(machine: Machine) -> None:
    mounts = (Mount("tmpfs", "/mnt/full", "size=64k"), Mount("tmpfs", "/mnt/read-only", read_only=True))
    guest = Guest(uid=USER, mounts=mounts)
    found = parse(machine.run(["python", "refusals.py", "/mnt/full", "/mnt/read-only"], guest))
    assert found == {
        "cgroup": "EACCES",
        "full": "ENOSPC",
        "read_only": "EROFS",
        "root": "EROFS",
        "other_process": "EPERM",
    }
    assert not os.path.exists("/uml-was-here")


@pytest.mark.slow
def test_the_table_of_capabilities_is_true(machine: Machine) -> None:
    places = ["tmpfs=/tmp", f"ext4={machine.disk}", f"hostfs={machine.shared}"]
    found = parse(machine.run(["python", "capabilities.py", *places]))
    absent = {
        "psi": False,
        "io.weight": False,
        "swap": False,
        "pidfd_get_info": "ENOTTY",
        "inotify_hostfs": "EAGAIN",
        "o_tmpfile_hostfs": "ENOTSUP",
    }
    facts = {
        "uid": "0",
        "cgroup_v2_controllers": "cpu io memory pids",
        "cgroup_v1": "",
        "cpus": "1",
        "initial_pid_namespace": "4026531836",
    }
    release = found.pop("kernel")
    bubblewrap = found.pop("bubblewrap")
    newer = {name: found[name] for name in absent if found[name] is True}
    assert not newer or not release.startswith("6.1."), newer
    assert {name: found.pop(name) for name in facts} == facts
    assert {name: value for name, value in found.items() if value is not True and name not in absent} == {}
    assert bubblewrap in {True, "not installed"}


@pytest.mark.slow
def test_a_v1_only_box_has_the_v1_controllers_and_no_v2(machine: Machine) -> None:
    found = parse(machine.run(["python", "capabilities.py"], Guest(cgroups=Cgroups.V1, uid=USER, delegated=True)))
    assert found["cgroup_v1"] == "blkio cpu,cpuacct devices freezer memory pids"
    assert found["cgroup_v2_controllers"] == "ENOENT"
    assert found["cgroup.kill"] is False
    assert found["pid_namespace"] == "EPERM"
    assert found["user_and_pid_namespace"] is True


@pytest.mark.slow
def test_a_guest_that_is_not_done_in_time_is_ended_and_shown(machine: Machine) -> None:
    boot = machine.start(["sleep", "60"])
    with pytest.raises(MachineError, match=r"still running after 0\.\d s"):
        boot.wait(0.1)
    assert not boot.running
    assert list_session(boot.pid) == []


START_AND_STAY = """
import signal, sys
sys.path.insert(0, sys.argv[1])
from tests.uml.machine import Machine
boot = Machine(sys.argv[2]).start(["sh", "-c", "echo up; sleep 60"])
boot.wait_for_output("up")
print(boot.pid, flush=True)
signal.pause()
"""


@pytest.mark.slow
def test_the_guest_dies_with_a_killed_test_process(tmp_path: Path) -> None:
    if find_kernel() is None:
        pytest.skip("linux.uml is not installed; `make test` installs it")
    command = [sys.executable, "-c", START_AND_STAY, REPOSITORY, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tester:
        assert tester.stdout is not None
        session = int(tester.stdout.readline())
        assert list_session(session) != []
        tester.kill()
    wait_until(lambda: list_session(session) == [])
