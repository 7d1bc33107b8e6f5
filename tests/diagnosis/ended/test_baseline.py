"""The baseline at launch: plain values that a later look can be held against, and nothing asked of other machines."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.diagnosis.ended import baseline, compare
from holdfast.diagnosis.ended.baseline import NOT_ASKED, read_baseline, read_counters
from holdfast.diagnosis.ended.gather import gather_evidence
from holdfast.diagnosis.ended.judge import judge_evidence
from holdfast.host.contain.group import ControlGroup
from holdfast.host.files.disks import DiskUnreadable
from holdfast.host.files.filesystems import Mount
from holdfast.model import wire
from tests.budget import examples
from tests.diagnosis.ended.making import ended, write_attempt

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.files, pytest.mark.requirement("DIAG-02")]


def test_DIAG_02_a_baseline_holds_boot_counters_disks_session_and_limits(tmp_path: Path) -> None:
    group = tmp_path / "g"
    group.mkdir()
    (group / "cgroup.procs").touch()
    (group / "memory.events").write_text("oom_kill 0\n")
    found = read_baseline(
        ControlGroup("g", str(group), {}, ("memory",)), {"run": str(tmp_path)}, {"SSH_CONNECTION": "x"}
    )
    assert json.loads(json.dumps(found)) == found, "plain values"
    assert found["boot_id"]
    assert found["memory_levels"][0] == {"path": str(group), "oom_kills": 0, "limit_bytes": None}
    assert found["disks"][0]["free_bytes"] > 0
    assert found["session"]["ssh"] is True
    assert found["rlimits"]["nofile"]
    assert "nofile_hard" in found["rlimits"]
    assert isinstance(found["oom_kills_since_boot"], int)


def test_a_group_without_memory_is_judged_by_the_place_that_we_are_in() -> None:
    levels = read_baseline(ControlGroup("g", None, {"cpu": "/nowhere"}), {}, {})["memory_levels"]
    assert all(level["path"].startswith("/sys/fs/cgroup") for level in levels)


def test_a_network_mount_is_not_asked_at_launch_and_once_for_all_its_paths_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def measure(path: str, mounts: object) -> None:
        asked.append(path)
        raise DiskUnreadable(110, "the network file system did not answer within 2 s", path)

    monkeypatch.setattr(baseline, "read_mounts", lambda: (Mount("/n", "nfs4", "server:/n", read_only=True),))
    monkeypatch.setattr(baseline, "measure_space", measure)
    places = [("run", "/n/runs"), ("checkpoints", "/n/runs/c"), ("work", "/n/w")]
    launch = read_counters([], places, ask_network=False)["disks"]
    assert asked == []
    assert [(disk["unread"], disk["read_only"]) for disk in launch] == [(NOT_ASKED, True)] * 3
    end = read_counters([], places)["disks"]
    assert asked == ["/n/runs"]
    assert all("did not answer" in disk["unread"] for disk in end)


def test_what_is_missing_on_one_side_is_named_and_never_zero() -> None:
    before = {"oom_kills_since_boot": 4, "boot_id": "a"}
    assert (
        compare.subtract_counter(before, {"oom_kills_since_boot": 6, "boot_id": "a"}, "oom_kills_since_boot").value == 2
    )
    again = compare.subtract_counter(before, {"oom_kills_since_boot": 6, "boot_id": "b"}, "oom_kills_since_boot")
    assert "started again" in again.unread
    unread = {"unread": {"oom_kills_since_boot": "not permitted"}, "boot_id": "a"}
    assert compare.subtract_counter(before, unread, "oom_kills_since_boot").unread == "not permitted (at the end)"
    assert compare.subtract_counter({}, before, "oom_kills_since_boot").unread == "nothing was written down at launch"
    elsewhere = compare.subtract_counter(before, {"elsewhere": "it ran on x"}, "oom_kills_since_boot")
    assert elsewhere.unread == "it ran on x"


KEYS = st.sampled_from(
    [
        "path",
        "role",
        "uuid",
        "index",
        "faults",
        "processes",
        "name",
        "unread",
        "free_bytes",
        "oom_kills",
        "limit_bytes",
        "read_only",
        "pci_bus_id",
        "kind",
        "ecc_uncorrectable",
        "run_id",
        "used_bytes",
        "pid",
        "user",
        "command",
        "tty_nr",
        "ssh",
        "as",
        "id",
        "level",
        "text",
        "nonfinite",
        "step",
        "planned_steps",
    ]
)
LEAF = st.none() | st.booleans() | st.integers(-3, 2**40) | st.text(max_size=4) | st.lists(st.integers(), max_size=2)
OBJECT = st.dictionaries(KEYS, LEAF | st.dictionaries(KEYS, LEAF, max_size=2), max_size=6)
LIST = st.lists(OBJECT | LEAF, max_size=3) | LEAF
BOX = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("memory_levels", "disks", "session", "rlimits", "unread", "kernel", "killers"), LIST | OBJECT
    )
    | dict.fromkeys(("boot_id", "init_start_ticks", "monotonic_s", "epoch_s", "oom_kills_since_boot"), LEAF),
)
RECORD = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("cards", "cgroup", "environment", "job", "usage", "findings", "v1", "host"), LIST | OBJECT)
    | {
        "baseline": BOX | LEAF,
        "final_cards": st.fixed_dictionaries({"cards": LIST}, optional={"complete": LEAF}) | LEAF,
    },
)


@pytest.mark.slow
@given(manifest=RECORD, record=RECORD, beat=OBJECT, aftermath=BOX)
@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_records_of_any_form_are_judged_without_an_error(
    tmp_path: Path, manifest: dict[str, Any], record: dict[str, Any], beat: dict[str, Any], aftermath: dict[str, Any]
) -> None:
    end = ended(None, 9)
    root = tmp_path / os.urandom(6).hex()
    run_dir = write_attempt(root, end, "epoch 1\n")
    for name, value in (
        (wire.MANIFEST, manifest),
        (wire.HEARTBEAT, beat),
        (wire.POSTFLIGHT, beat),
        ("../../run.json", record),
    ):
        (root / os.path.basename(run_dir) / "attempts" / "1" / name).write_text(json.dumps(value))
    found, _ = gather_evidence(run_dir, 1, end, record=record, aftermath=aftermath)
    verdict, ladder = judge_evidence(found)
    assert verdict is not None
    assert ladder
