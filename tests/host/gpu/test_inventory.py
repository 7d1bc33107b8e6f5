"""Reading cards through the real binding and a fake driver library: values, faults, hangs, lies, holders."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.host.gpu.inventory import (
    build_inventory,
    confirm_ghosts,
    list_device_files,
    read_inventory,
    sample_utilisation,
)
from holdfast.host.gpu.probe_client import Probe, ProbeFailed, ProbeStuck, reap_abandoned
from holdfast.host.gpu.processes import ProcessView, classify_holder, gather_facts, read_process_view
from holdfast.model.gpu import HolderKind, InventorySource
from tests.fakes.nvml import GIB
from tests.fakes.nvml.driver import LIBRARY_MISMATCH, UNKNOWN_ERROR
from tests.kernel_calls import list_open_files
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fakes.nvml import FakeNvml

pytestmark = pytest.mark.process

NEVER_A_PID = 4194304
"""One above the largest pid a 64-bit kernel gives out (PID_MAX_LIMIT)."""
PATIENT_S = LIMIT_S
"""A deadline that no test waits for, so that a loaded machine fails none."""


@pytest.fixture
def probe() -> Iterator[Probe]:
    with Probe() as own:
        yield own


def read_patiently(probe: Probe | None = None) -> list[str]:
    """Faults of all cards, as one list."""
    return [fault for card in read_inventory(PATIENT_S, probe=probe).cards for fault in card.faults]


def test_a_card_is_read_through_the_real_binding(fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(2)
    fake_nvml.set(1, memory__used=20 * GIB, utilisation=87, clock_reasons=0x48, numa=1, ecc__aggregate__uncorrected=9)
    inventory = read_inventory(PATIENT_S)
    assert inventory.source is InventorySource.NVML
    assert (inventory.driver_version, inventory.cuda_version) == ("550.54.15", "12.4")
    assert inventory.complete
    idle, busy = inventory.cards
    assert (idle.index, idle.name, idle.pci_bus_id) == (0, "NVIDIA A100-SXM4-80GB", "00000000:3A:00.0")
    assert idle.uuid == fake_nvml.cards[0].uuid
    assert idle.memory_free_bytes == 80 * GIB - 600 * 1024**2
    assert (idle.throttle, idle.faults, idle.processes) == ((), (), ()), "an idle clock limits nothing"
    assert (busy.memory_used_bytes, busy.utilisation_pct, busy.numa_node) == (20 * GIB, 87, 1)
    assert busy.throttle == ("hw_slowdown", "hw_thermal")
    assert (busy.temperature_c, busy.power_w) == (31, 61.25)
    assert busy.faults == (), "old, mended memory errors are no fault"


def test_a_probe_sees_every_change_without_a_new_start(fake_nvml: FakeNvml, probe: Probe) -> None:
    fake_nvml.add_cards(1)
    assert read_inventory(PATIENT_S, probe=probe).cards[0].utilisation_pct == 0
    first = probe.pid
    fake_nvml.set(0, utilisation=42)
    assert read_inventory(PATIENT_S, probe=probe).cards[0].utilisation_pct == 42
    assert probe.pid == first


@pytest.mark.slow
def test_an_old_driver_without_newer_functions_is_read(
    fake_nvml: FakeNvml, old_nvml_library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", os.path.dirname(old_nvml_library))
    fake_nvml.add_cards(1)
    fake_nvml.set(0, clock_reasons=0x4)
    (card,) = read_inventory(PATIENT_S).cards
    assert card.throttle == ("sw_power_cap",)
    assert card.memory_used_bytes == 600 * 1024**2, "the first version counts the driver's own memory as used"
    assert card.faults == ()


def test_a_value_that_the_card_does_not_have_is_no_fault(fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.set(0, power_mw=None, remapped=None, ecc__volatile__uncorrected=None, temperature=None)
    (card,) = read_inventory(PATIENT_S).cards
    assert (card.power_w, card.ecc_uncorrectable, card.temperature_c, card.faults) == (None, None, None, ())


def test_no_library_is_a_box_without_gpus_and_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    inventory = read_inventory(PATIENT_S)
    known = not list_device_files()
    source = InventorySource.NONE if known else InventorySource.NVML
    assert (inventory.source, inventory.cards, inventory.complete) == (source, (), known)
    assert "libnvidia-ml.so.1" in (inventory.reason or "")


def test_a_library_of_another_version_than_the_driver_is_said(fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.fail("nvmlInitWithFlags", LIBRARY_MISMATCH)
    inventory = read_inventory(PATIENT_S)
    assert (inventory.source, inventory.complete) == (InventorySource.NVML, False)
    assert "version mismatch" in (inventory.reason or "").lower()


def test_a_driver_that_is_not_loaded_is_a_box_without_gpus(fake_nvml: FakeNvml) -> None:
    fake_nvml.fail("nvmlInitWithFlags", 9)
    assert read_inventory(PATIENT_S).complete is not bool(list_device_files())


@pytest.mark.parametrize("code", [9, 12])
def test_a_card_with_a_device_file_may_be_there_where_the_driver_is_not(code: int) -> None:
    reply = {"count": 0, "cards": [], "stuck": [], "facts": {}, "errors": [("nvmlInitWithFlags", code, "")]}
    assert build_inventory(reply, read_process_view()).complete
    inventory = build_inventory(reply, read_process_view(), ("nvidia0",))
    assert (inventory.source, inventory.complete) == (InventorySource.NVML, False)
    assert (inventory.reason or "").endswith(", and a card has the device file /dev/nvidia0")


def test_a_lost_card_is_named_and_the_others_are_read(fake_nvml: FakeNvml, probe: Probe) -> None:
    fake_nvml.add_cards(3)
    read_patiently(probe)
    fake_nvml.lose(1)
    inventory = read_inventory(PATIENT_S, probe=probe)
    assert [bool(card.faults) for card in inventory.cards] == [False, True, False]
    lost = inventory.cards[1]
    assert lost.faults[0].startswith("lost: ")
    assert lost.uuid == fake_nvml.cards[1].uuid, "known from the reading before"
    assert lost.processes is None
    assert inventory.cards[2].memory_free_bytes
    fake_nvml.heal()
    assert read_patiently(probe) == []


def test_a_card_lost_from_the_beginning_has_no_uuid_to_lease(fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.lose(0)
    (card,) = read_inventory(PATIENT_S).cards
    assert card.uuid == "UNREADABLE-0"
    assert card.faults


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"ecc__volatile__uncorrected": 2}, "ecc_uncorrectable"),
        ({"remapped": "0 1 0 1"}, "remap_failed"),
        ({"remapped": "0 1 1 0"}, "remap_pending"),
        ({"retired_pending": 1}, "remap_pending"),
        ({"memory__used": 90 * GIB, "memory__free": 0}, "implausible"),
        ({"memory__free": 99 * GIB}, "implausible"),
        ({"utilisation": 4000}, "implausible"),
    ],
)
def test_damage_and_lies_are_faults(fake_nvml: FakeNvml, values: dict[str, object], code: str) -> None:
    fake_nvml.add_cards(2)
    fake_nvml.set(1, **values)
    good, bad = read_inventory(PATIENT_S).cards
    assert good.faults == ()
    assert [fault.partition(":")[0] for fault in bad.faults] == [code]


def test_a_value_that_cannot_be_true_is_not_passed_on(fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.set(0, memory__used=90 * GIB, memory__free=0, utilisation=4000)
    (card,) = read_inventory(PATIENT_S).cards
    assert (card.memory_total_bytes, card.memory_used_bytes, card.memory_free_bytes) == (None, None, None)
    assert card.utilisation_pct is None


@pytest.mark.parametrize("code", [UNKNOWN_ERROR, 16])
def test_an_error_of_one_call_is_a_fault_of_that_card_only(fake_nvml: FakeNvml, code: int) -> None:
    fake_nvml.add_cards(2)
    fake_nvml.fail("nvmlDeviceGetMemoryInfo_v2", code, 0)
    broken, good = read_inventory(PATIENT_S).cards
    assert broken.faults[0].startswith("unreadable: " if code == UNKNOWN_ERROR else "reset_required: ")
    assert "nvmlDeviceGetMemoryInfo" in broken.faults[0]
    assert good.faults == ()


@pytest.mark.slow
def test_a_call_that_hangs_costs_one_card_and_not_the_reading(fake_nvml: FakeNvml, probe: Probe) -> None:
    fake_nvml.add_cards(3)
    fake_nvml.set(1, utilisation=33)
    read_patiently(probe)
    fake_nvml.hang("nvmlDeviceGetTemperature", 1)
    inventory = read_inventory(1.0, probe=probe)
    assert not inventory.complete
    assert inventory.reason == "card 1 did not answer in time"
    before, stuck, after = inventory.cards
    assert (before.faults, after.faults) == ((), ())
    assert after.memory_free_bytes
    assert stuck.faults[0].startswith("unresponsive: nvmlDeviceGetTemperature")
    assert (stuck.uuid, stuck.utilisation_pct) == (fake_nvml.cards[1].uuid, 33), "what was read before stays"
    child = probe.pid
    again = read_inventory(PATIENT_S, probe=probe)  # a card that still hangs is reported without waiting for it
    assert again.cards[1].faults[0].startswith("unresponsive: ")
    fake_nvml.heal()
    wait_until(lambda: read_patiently(probe) == [], what="the card to come back")
    assert probe.pid == child


@pytest.mark.slow
def test_a_driver_that_hangs_at_start_gives_an_incomplete_reading(fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.hang("nvmlInitWithFlags")
    inventory = read_inventory(1.0)
    assert (inventory.source, inventory.cards, inventory.complete) == (InventorySource.NVML, (), False)
    assert inventory.reason


@pytest.mark.slow
def test_a_slow_first_start_is_finished_by_a_kept_probe(fake_nvml: FakeNvml, probe: Probe) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.hang("nvmlInitWithFlags")
    assert not read_inventory(1.0, probe=probe).complete
    fake_nvml.heal()
    wait_until(lambda: read_inventory(PATIENT_S, probe=probe).complete, what="the driver to have started")


@pytest.mark.slow
def test_a_library_whose_loading_hangs_is_given_up_and_started_anew(fake_nvml: FakeNvml, probe: Probe) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.fault("hang.load", 1, None)
    inventory = read_inventory(0.5, probe=probe)
    assert not inventory.complete
    assert inventory.reason
    fake_nvml.heal()
    wait_until(lambda: read_inventory(PATIENT_S, probe=probe).complete, what="a fresh probe to read")


def test_a_stopped_probe_is_killed_and_replaced(fake_nvml: FakeNvml, probe: Probe) -> None:
    fake_nvml.add_cards(1)
    read_patiently(probe)
    stopped = probe.pid
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    with pytest.raises(ProbeStuck) as caught:
        probe.ask({"op": "inventory"}, 0.2)
    assert caught.value.seconds >= 0.2
    assert probe.pid is None
    assert read_patiently(probe) == []
    assert probe.pid != stopped
    wait_until(lambda: reap_abandoned() == 0, what="the killed probe to be reaped")


def test_a_killed_probe_that_still_hangs_is_not_piled_upon(
    fake_nvml: FakeNvml, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in uninterruptible sleep outlives SIGKILL; here it is a stopped one that is spared the signal."""
    fake_nvml.add_cards(1)
    read_patiently(probe)
    hanging = probe.pid
    assert hanging is not None
    os.kill(hanging, signal.SIGSTOP)
    monkeypatch.setattr("holdfast.host.gpu.probe_client._Child.kill", lambda child: None)
    probe._backoff_s = PATIENT_S
    with pytest.raises(ProbeStuck):
        probe.ask({"op": "inventory"}, 0.2)
    refused = read_inventory(PATIENT_S, probe=probe)
    assert (refused.cards, refused.complete, probe.pid) == ((), False, None)
    assert reap_abandoned() == 1
    os.kill(hanging, signal.SIGCONT)  # the driver lets go
    wait_until(lambda: reap_abandoned() == 0, what="the old probe to be gone")
    assert len(read_inventory(PATIENT_S, probe=probe).cards) == 1


def test_a_probe_that_dies_is_replaced(fake_nvml: FakeNvml, probe: Probe) -> None:
    fake_nvml.add_cards(1)
    read_patiently(probe)
    child = probe.pid
    assert child is not None
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert len(read_inventory(PATIENT_S, probe=probe).cards) == 1
    assert probe.pid != child


def test_a_driver_that_takes_its_process_down_is_said(fake_nvml: FakeNvml, probe: Probe) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.crash("nvmlDeviceGetTemperature", 0)
    inventory = read_inventory(PATIENT_S, probe=probe)
    assert (inventory.cards, inventory.complete) == ((), False)
    assert "may have crashed" in (inventory.reason or "")
    fake_nvml.heal()
    assert len(read_inventory(PATIENT_S, probe=probe).cards) == 1


def test_a_probe_that_somebody_else_reaped_is_replaced(fake_nvml: FakeNvml, probe: Probe) -> None:
    fake_nvml.add_cards(1)
    read_patiently(probe)
    child = probe.pid
    assert child is not None
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)  # a supervisor reaps whatever child ends
    assert len(read_inventory(PATIENT_S, probe=probe).cards) == 1


def test_a_poll_loop_is_never_blocked(fake_nvml: FakeNvml, probe: Probe) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.slow("nvmlDeviceGetTemperature", 100, 0)
    probe.send({"op": "inventory"}, PATIENT_S)
    assert probe.receive_ready() is None
    with pytest.raises(ProbeFailed, match="busy"):
        probe.send({"op": "inventory"}, PATIENT_S)
    poll, replies = select.poll(), list[object]()
    poll.register(probe.fileno(), select.POLLIN)
    while not replies:
        assert poll.poll(PATIENT_S * 1000)
        reply = probe.receive_ready()
        if reply is not None:
            replies.append(reply)
    assert probe.receive_ready() is None


def test_the_probe_holds_no_lease_and_carries_no_marker(
    fake_nvml: FakeNvml, probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml.add_cards(1)
    monkeypatch.setenv("HOLDFAST_RUN_ID", "outer-run")
    descriptor = os.open(tmp_path / "lease", os.O_CREAT | os.O_RDWR, 0o600)
    os.set_inheritable(descriptor, True)  # as the descriptor of a lease on its way to a job
    try:
        read_patiently(probe)
        assert probe.pid is not None
        held = list_open_files(probe.pid)
    finally:
        os.close(descriptor)
    assert str(tmp_path / "lease") not in held
    with open(f"/proc/{probe.pid}/environ", "rb") as file:
        assert b"HOLDFAST_" not in file.read()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="pidfds go through ctypes where Python does not name them")
def test_the_asking_process_loads_neither_ctypes_nor_the_binding() -> None:
    code = "import sys, holdfast.host.gpu.inventory as gpus; gpus.read_inventory(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "holdfast.host.gpu.probe_client" in loaded
    assert [name for name in loaded if "ctypes" in name or "pynvml" in name] == []


def test_LEASE_15_processes_are_named_with_user_command_and_age(fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.run_on(0, (os.getpid(), 3 * GIB), (os.getppid(), None))
    first, second = read_inventory(PATIENT_S).cards[0].processes or ()
    assert (first.kind, first.used_bytes) == (HolderKind.UNMANAGED, 3 * GIB)
    assert first.user
    assert "python" in (first.command or "")
    assert first.age_s is not None
    assert first.age_s > 0
    assert (second.pid, second.used_bytes) == (os.getppid(), None)


def test_a_process_of_a_run_is_managed(fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "HOLDFAST_RUN_ID": "20260101-000000-x-abcd"}) as job:
        fake_nvml.run_on(0, (job.pid, GIB))
        (process,) = read_inventory(PATIENT_S).cards[0].processes or ()
        job.kill()
    assert (process.kind, process.run_id) == (HolderKind.MANAGED, "20260101-000000-x-abcd")


needs_initial_namespace = pytest.mark.skipif(
    not read_process_view().complete, reason="runs inside a PID namespace or under hidepid: no pid is a ghost here"
)


@needs_initial_namespace
def test_LEASE_12_a_pid_of_no_process_is_a_ghost_in_the_initial_namespace(fake_nvml: FakeNvml, probe: Probe) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.run_on(0, (NEVER_A_PID, GIB), (0, GIB))
    ghost, nobody = read_inventory(PATIENT_S, probe=probe).cards[0].processes or ()
    assert ghost.kind is HolderKind.GHOST
    assert nobody.kind is HolderKind.UNKNOWN


@pytest.mark.slow
@needs_initial_namespace
def test_a_ghost_is_found_beside_a_card_that_hangs(fake_nvml: FakeNvml, probe: Probe) -> None:
    fake_nvml.add_cards(2)
    fake_nvml.run_on(0, (NEVER_A_PID, GIB))
    fake_nvml.hang("nvmlDeviceGetTemperature", 1)
    assert not read_inventory(1.0, probe=probe).complete

    # On a busy machine the probe may have been given up, and is started anew; or it was read, and the pid not yet.
    def find_holders() -> list[HolderKind]:
        cards = read_inventory(PATIENT_S, probe=probe).cards
        kinds = [holder.kind for holder in (cards[0].processes or () if cards else ())]
        return [] if HolderKind.UNKNOWN in kinds else kinds

    assert wait_until(find_holders, what="the card that answers") == [HolderKind.GHOST]


def test_LEASE_12_a_pid_that_was_absent_once_is_no_ghost() -> None:
    """A process may end between the driver's list and our look at the process table."""
    absent = {"cards": [], "stuck": [], "facts": {"5": {"exists": False}}}
    assert confirm_ghosts(absent, None)["facts"] == {}
    assert confirm_ghosts(absent, absent)["facts"] == {"5": {"exists": False}}
    other = {"cards": [], "stuck": [], "facts": {"6": {"exists": False}}}
    assert confirm_ghosts(absent, other)["facts"] == {}, "each pid is confirmed by itself"
    worse = {**absent, "stuck": [{"index": 1}]}
    assert confirm_ghosts(absent, worse)["facts"] == {}, "a second reading with more silent cards confirms nothing"


NAMESPACE_SCRIPT = """
import json
from holdfast.host.gpu.inventory import read_inventory
cards = read_inventory(20.0).cards
print(json.dumps([[p.pid, p.kind.value, p.user, p.command] for p in cards[0].processes]))
"""


@pytest.mark.requirement("B-19")
def test_LEASE_12_inside_another_pid_namespace_no_pid_is_a_ghost(fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.run_on(0, (NEVER_A_PID, GIB), (1, GIB), (0, None))
    user_namespace = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *user_namespace, "--pid", "--fork", "--mount-proc", sys.executable, "-c", NAMESPACE_SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row[1] for row in rows] == ["other_namespace"] * 3
    assert all(row[2:] == [None, None] for row in rows), "pid 1 of the namespace is not the process on the card"


@needs_initial_namespace
@pytest.mark.skipif(os.geteuid() != 0, reason="making a PID namespace below without a user namespace needs root")
def test_LEASE_12_a_process_of_a_container_is_seen_and_named_as_such(fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    with subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "sleep", "60"]) as outer:
        children = f"/proc/{outer.pid}/task/{outer.pid}/children"

        def read_sleeper() -> int:
            with open(children, encoding="ascii") as file:
                inner = file.read().split()
            return int(inner[0]) if inner and "sleep" in os.readlink(f"/proc/{inner[0]}/exe") else 0

        inside = wait_until(read_sleeper)
        fake_nvml.run_on(0, (inside, GIB))
        (process,) = read_inventory(PATIENT_S).cards[0].processes or ()
        os.kill(inside, signal.SIGKILL)
    assert process.kind is HolderKind.OTHER_NAMESPACE
    assert process.command == "sleep 60"


HIDEPID_SCRIPT = """
import json, os, subprocess
from holdfast.host.gpu.processes import classify_holder
from holdfast.host.gpu.processes import gather_facts
from holdfast.host.gpu.processes import read_process_view
subprocess.run(["mount", "-t", "proc", "-o", "hidepid=2", "proc", "/proc"], check=True)
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
view, facts = read_process_view(), {}
gather_facts([1, os.getpid()], facts, lambda _: None, devices=False)
kinds = [classify_holder(pid, facts[pid], view).value for pid in (1, os.getpid())]
print(json.dumps([view.complete, *kinds]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting /proc with hidepid needs root")
@needs_initial_namespace
def test_LEASE_12_a_hidden_process_is_unknown_and_no_ghost() -> None:
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", HIDEPID_SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [False, "unknown", "unmanaged"]


@pytest.mark.parametrize(
    ("pid", "facts", "inside", "outside"),
    [
        (5, None, "unknown", "unknown"),
        (0, {"exists": False}, "other_namespace", "unknown"),
        (5, {"exists": False}, "other_namespace", "ghost"),
        (5, {"exists": "hidden"}, "unknown", "unknown"),
        (5, {"exists": True, "holds_device": True}, "unmanaged", "unmanaged"),
        (5, {"exists": True, "holds_device": False}, "other_namespace", "unmanaged"),
        (5, {"exists": True, "holds_device": None}, "unknown", "unmanaged"),
        (5, {"exists": True, "run_id": "r", "holds_device": False}, "other_namespace", "managed"),
        (5, {"exists": True, "run_id": "r", "holds_device": True}, "managed", "managed"),
        (5, {"exists": True, "nested": True, "run_id": None}, "unknown", "other_namespace"),
        (5, {"exists": True, "nested": True, "run_id": "r"}, "unknown", "managed"),
    ],
)
def test_holders_are_classified_by_where_we_stand(
    pid: int, facts: dict[str, object] | None, inside: str, outside: str
) -> None:
    assert classify_holder(pid, facts, ProcessView(initial=False, hidden=False)).value == inside
    assert classify_holder(pid, facts, ProcessView(initial=True, hidden=False)).value == outside


def test_facts_of_a_process_that_may_not_be_read_stay_unknown() -> None:
    facts: dict[int, dict[str, object]] = {}
    gather_facts([2, -1], facts, lambda _: None, devices=True)
    assert facts[-1] == {"exists": False}
    assert facts[2]["run_id"] is None


def test_LEASE_19_mig_slices_have_their_own_uuid_memory_and_processes(fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.slice(0, "MIG-aaaa", "MIG-bbbb")
    fake_nvml.cards[0].slices[1].update({"processes": f"{os.getpid()}:4096:1", "memory.used": GIB})
    fake_nvml.write()
    (card,) = read_inventory(PATIENT_S).cards
    assert card.mig_enabled
    assert card.utilisation_pct is None
    assert card.faults == ()
    first, second = card.mig_slices
    assert (first.uuid, first.profile, first.processes) == ("MIG-aaaa", "1g.10gb", ())
    assert (second.memory_used_bytes, second.processes[0].pid) == (GIB, os.getpid())


def test_LEASE_10_utilisation_is_sampled_over_a_window(fake_nvml: FakeNvml, probe: Probe) -> None:
    fake_nvml.add_cards(2)
    fake_nvml.set(1, utilisation=95)
    read_patiently(probe)
    uuids = [card.uuid for card in fake_nvml.cards]
    samples = sample_utilisation([*uuids, "GPU-gone"], 0.1, 0.02, probe=probe)
    assert set(samples[uuids[0]]) == {0}
    assert set(samples[uuids[1]]) == {95}
    assert set(samples["GPU-gone"]) == {None}
    assert len(samples[uuids[0]]) > 1


@pytest.mark.parametrize(("value", "count", "gib"), [("0", 0, 0), ("3", 3, 24), ("2x80GiB", 2, 80)])
def test_simulated_cards_say_that_they_are(
    monkeypatch: pytest.MonkeyPatch, fake_nvml: FakeNvml, value: str, count: int, gib: int
) -> None:
    fake_nvml.add_cards(7)
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", value)
    inventory = read_inventory()
    assert inventory.source is InventorySource.SIMULATED
    assert [card.memory_total_bytes for card in inventory.cards] == [gib * GIB] * count
    assert len({card.uuid for card in inventory.cards}) == count
    assert inventory == read_inventory(), "the same cards each time"


def test_a_simulation_file_is_read_again_at_each_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "box.json"
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", str(path))
    mine = {"pid": os.getpid(), "used": "2GiB"}
    ghost = {"pid": 77, "kind": "ghost"}
    path.write_text(json.dumps({"cards": [{"utilisation_pct": 5, "processes": [mine, ghost]}], "driver_version": "1"}))
    (card,) = read_inventory().cards
    assert card.utilisation_pct == 5
    assert [process.kind for process in card.processes or ()] == [HolderKind.UNMANAGED, HolderKind.GHOST]
    path.write_text(json.dumps({"cards": [{"mig_slices": [{"uuid": "MIG-1"}], "faults": ["lost: pulled out"]}, {}]}))
    sliced, plain = read_inventory().cards
    assert sliced.mig_slices[0].uuid == "MIG-1"
    assert sliced.faults == ("lost: pulled out",)
    assert not plain.mig_enabled
    assert sample_utilisation([plain.uuid], 0.0) == {plain.uuid: (0,)}


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("{", "Expecting"),
        ("[]", "list"),
        ('{"cards": [{"colour": 1}]}', "colour"),
        ('{"cards": [{"uuid": "GPU-1"}, {"uuid": "GPU-1"}]}', "twice"),
        ('{"cards": [{"memory_total": "much"}]}', "not a size"),
        ('{"cards": [{"mig_slices": [{}]}]}', "uuid"),
        ('{"cards": [7]}', "card 0"),
        ('{"cards": [{"processes": [{"pid": 1, "kind": "alien"}]}]}', "alien"),
    ],
)
def test_a_bad_simulation_is_no_card_and_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, seen: str
) -> None:
    path = tmp_path / "box.json"
    path.write_text(text)
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", str(path))
    inventory = read_inventory()
    assert (inventory.source, inventory.cards, inventory.complete) == (InventorySource.SIMULATED, (), False)
    assert seen in (inventory.reason or "")


@pytest.mark.parametrize("value", ["", "four", "4xbig", "9999", "/nowhere/box.json"])
def test_a_bad_simulation_variable_is_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", value)
    inventory = read_inventory()
    assert inventory.cards == ()
    assert f"HOLDFAST_SIMULATED_GPUS={value}" in (inventory.reason or "")


@pytest.mark.slow
def test_a_status_with_a_blocked_driver_answers(
    fake_nvml: FakeNvml, record_property: Callable[[str, object], None]
) -> None:
    """The elapsed time is recorded, not asserted: a loaded machine proves nothing."""
    fake_nvml.add_cards(8)
    fake_nvml.hang("nvmlDeviceGetUUID", 3)
    began = time.monotonic()
    inventory = read_inventory()
    record_property("elapsed_s", time.monotonic() - began)
    assert (inventory.source, inventory.complete) == (InventorySource.NVML, False)
    assert inventory.reason
    # A probe that was given up is killed and set aside: nobody waits for it but the next look.
    wait_until(lambda: reap_abandoned() == 0, what="the probe that was given up to be gone")
