"""Lines of the kernel's log in every form they come in: what is known, what is forged, what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnosis.evidence import KernelEvent, KernelKind
from holdfast.diagnosis.kernel.parse import NO_TIME, read_line
from tests.diagnosis.kernel.texts import parse_text
from tests.each import each

pytestmark = pytest.mark.pure


def parse_one(text: str, **options: bool) -> KernelEvent:
    (event,) = parse_text(text, **options)
    return event


def record(text: str, *, facility: int = 0, sequence: int = 7, microseconds: int = 5_000_000) -> str:
    return f"{facility << 3 | 4},{sequence},{microseconds},-;{text}"


@pytest.mark.requirement("GPUH-02", "B-64")
@pytest.mark.parametrize(
    ("line", "pci", "code", "pid", "comm"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, gone", "0000:3b:00.0", "79", 1234, "python3"),
        ("NVRM: Xid (PCI:0000:AF:00): 31, pid=48, name=train.py, Ch 00000008", "0000:af:00.0", "31", 48, "train.py"),
        ("NVRM: Xid (PCI:0000:01:00): 45, pid='<unknown>', name=<unknown>, Ch 8", "0000:01:00.0", "45", None, ""),
        ("NVRM: Xid (PCI:0000:01:00): 13, pid='2000', name='a b', Graphics", "0000:01:00.0", "13", 2000, "a b"),
        ("NVRM: Xid (PCI:0000:3b:00): 48 An uncorrectable double bit error", "0000:3b:00.0", "48", None, ""),
        ("NVRM: Xid (0000:03:00): 6, PE0001", "0000:03:00.0", "6", None, ""),
        ("NVRM: Xid (PCI:00010000:c1:00): 119, Timeout", "10000:c1:00.0", "119", None, ""),
    ],
)
def test_a_xid_is_read_structurally(line: str, pci: str, code: str, pid: int | None, comm: str) -> None:
    event = parse_one(record(line))
    assert event.kind is KernelKind.XID
    assert (event.values["pci"], event.values["code"], event.pid, event.comm) == (pci, code, pid, comm)
    assert (event.seconds, event.sequence, event.trusted) == (5.0, 7, True)


def test_a_xid_of_a_slice_names_its_instance() -> None:
    event = parse_one(record("NVRM: Xid (PCI:0000:b1:00 GPU-I:05 GPU-CI:01): 94, pid=7, name=x, Contained"))
    assert (event.values["code"], event.values["gpu_instance"], event.values["compute_instance"]) == ("94", "05", "01")


@pytest.mark.parametrize(
    "line",
    [
        "my job says NVRM: Xid (PCI:0000:3b:00): 79, gone",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
        "NVRM: Xid (PCI:0000:3b:00): none",
        "usb 1-1: I/O error",
        "mean squared error, dev set",
        "",
    ],
)
def test_what_only_resembles_an_event_is_none(line: str) -> None:
    assert parse_text(record(line)) == ()


def test_a_process_that_is_named_like_a_xid_only_crashed() -> None:
    event = parse_one(record("NVRM: Xid (PCI:[1234]: segfault at 0 ip 0 sp 0 error 4"))
    assert (event.kind, event.comm) == (KernelKind.SEGFAULT, "NVRM: Xid (PCI:")


def test_a_line_that_a_process_wrote_is_not_trusted() -> None:
    forged = record("NVRM: Xid (PCI:0000:3b:00): 79, gone", facility=1)
    assert not parse_one(forged).trusted
    assert parse_one(forged, trust_injected=True).trusted, "a rehearsed fault may be believed on request"


@each("facility", range(1, 24))
def test_every_facility_but_the_kernels_is_a_process(facility: int) -> None:
    assert not parse_one(record("NVRM: Xid (PCI:0000:3b:00): 79, gone", facility=facility)).trusted


def test_a_line_break_in_a_name_makes_no_event_of_its_own() -> None:
    forged = r"Bluetooth: device \x0aNVRM: Xid (PCI:0000:3b:00): 79, gone"
    assert parse_text(record(forged)) == ()


@pytest.mark.parametrize(
    "text",
    [
        record("NVRM: GPU 0000:18:00.0: GPU has fallen off the bus."),
        record("NVRM: GPU at PCI:0000:18:00: GPU has fallen off the bus."),
        record(
            r"NVRM: The NVIDIA GPU 0000:18:00.0\x0aNVRM: (PCI ID: 10de:20b0) installed in this system has"
            r"\x0aNVRM: fallen off the bus and is not responding to commands."
        ),
        (
            "<3>[ 12.5] NVRM: The NVIDIA GPU 0000:18:00.0\n"
            "<3>[ 12.5] NVRM: (PCI ID: 10de:20b0) installed in this system has\n"
            "<3>[ 12.5] NVRM: fallen off the bus and is not responding to commands.\n"
        ),
    ],
)
def test_a_card_that_fell_off_the_bus_is_known_without_a_xid(text: str) -> None:
    event = parse_one(text)
    assert (event.kind, event.values["pci"], event.trusted) == (KernelKind.CARD_LOST, "0000:18:00.0", True)


def test_the_two_halves_of_a_message_must_have_one_writer() -> None:
    first = record("NVRM: The NVIDIA GPU 0000:18:00.0")
    last = record("NVRM: fallen off the bus and is not responding to commands.", facility=1)
    assert parse_text(f"{first}\n{last}") == ()


def test_a_group_kill_and_a_global_one_are_told_apart() -> None:
    group = parse_one(
        record(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg=/runs/a,"
            "task_memcg=/runs/a/b,task=python,pid=77,uid=1000"
        )
    )
    assert (group.kind, group.pid, group.comm) == (KernelKind.OOM_KILL, 77, "python")
    assert (group.values["oom_memcg"], group.values["task_memcg"], group.values["uid"]) == (
        "/runs/a",
        "/runs/a/b",
        "1000",
    )
    whole = parse_one(
        record(
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
            "task_memcg=/x,task=py,thon,pid=78,uid=0"
        )
    )
    assert "oom_memcg" not in whole.values
    assert (whole.values["constraint"], whole.values["task"], whole.pid) == ("CONSTRAINT_NONE", "py,thon", 78)


@pytest.mark.parametrize(
    ("prefix", "scope"),
    [("Memory cgroup out of memory: ", "memcg"), ("Out of memory: ", "global"), ("", None)],
)
def test_a_victim_has_its_memory_and_what_ran_out(prefix: str, scope: str | None) -> None:
    line = f"{prefix}Killed process 77 (a) b) total-vm:1000kB, anon-rss:900kB, file-rss:0kB"
    event = parse_one(record(line))
    assert (event.kind, event.pid, event.comm) == (KernelKind.OOM_VICTIM, 77, "a) b")
    assert (event.values["total_vm_kb"], event.values["anon_rss_kb"]) == ("1000", "900")
    assert event.values.get("scope") == scope


@each(
    ("line", "kind", "values"),
    [
        ("INFO: task kworker/0:1:99 blocked for more than 122 seconds.", KernelKind.HUNG_TASK, {"blocked_s": "122"}),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [py:5]", KernelKind.SOFT_LOCKUP, {"cpu": "3"}),
        (
            "python[12]: segfault at 7f00 ip 0 sp 0 error 4 in libc.so.6[7f+1000]",
            KernelKind.SEGFAULT,
            {"library": "libc.so.6", "address": "7f00"},
        ),
        (
            "traps: py[3] general protection fault ip:7f sp:7f error:0 in libfoo.so[7f+2]",
            KernelKind.SEGFAULT,
            {"library": "libfoo.so"},
        ),
        ("nfs: server filer not responding, still trying", KernelKind.NFS, {"state": "not responding"}),
        ("nfs: server filer OK", KernelKind.NFS, {"server": "filer", "state": "OK"}),
        ("EXT4-fs (sda1): Remounting filesystem read-only", KernelKind.READ_ONLY, {"device": "sda1"}),
        ("BTRFS info (device sdb: state E): forced readonly", KernelKind.READ_ONLY, {"device": "sdb"}),
        ("BTRFS: error (device sdb) in cleanup:1: forced readonly", KernelKind.READ_ONLY, {"device": "sdb"}),
        ("BTRFS error (device sdb state EA): forced readonly", KernelKind.READ_ONLY, {"device": "sdb"}),
        ("XFS (dm-0): Filesystem has been shut down due to log error", KernelKind.READ_ONLY, {"device": "dm-0"}),
        ("blk_update_request: I/O error, dev sda, sector 5 op 0x0", KernelKind.IO_ERROR, {"device": "sda"}),
        ("I/O error, dev nvme0n1, sector 5 op 0x0:(READ)", KernelKind.IO_ERROR, {"device": "nvme0n1"}),
        ("critical medium error, dev sdc, sector 5 op 0x0", KernelKind.IO_ERROR, {"device": "sdc"}),
        ("Buffer I/O error on dev sda1, logical block 3", KernelKind.IO_ERROR, {"device": "sda1"}),
    ],
)
def test_the_rest_of_what_the_kernel_says(line: str, kind: KernelKind, values: dict[str, str]) -> None:
    event = parse_one(record(line))
    assert event.kind is kind
    assert values.items() <= event.values.items()


@each(
    ("line", "seconds", "facility"),
    [
        ("<4>[   12.500000] hello", 12.5, 0),
        ("<12>[   12.500000] hello", 12.5, 1),
        ("[   12.500000] hello", 12.5, None),
        ("[   12.500000] box kernel: hello", 12.5, None),
        ("kern  :warn  : [   12.500000] hello", 12.5, 0),
        ("user  :warn  : [   12.500000] hello", 12.5, 1),
        ("[Fri Nov 20 17:00:00 2026] hello", NO_TIME, None),
        ("Nov 20 17:00:00 box kernel: hello", NO_TIME, None),
        ("Nov 20 17:00:00 box kernel: [   12.500000] hello", 12.5, None),
        ("hello", NO_TIME, None),
    ],
)
def test_each_form_of_a_line_gives_its_time_and_writer(line: str, seconds: float, facility: int | None) -> None:
    found = read_line(line)
    assert (found.text, found.seconds, found.facility) == ("hello", seconds, facility)


def test_a_line_that_does_not_say_who_wrote_it_is_trusted_only_on_request() -> None:
    line = "[ 12.5] NVRM: Xid (PCI:0000:3b:00): 79, gone"
    assert not parse_one(line).trusted
    assert parse_one(line, trust_unmarked=True).trusted


def test_garbage_of_any_kind_is_survived() -> None:
    lines = [
        "\x00\x01",
        "9" * 100_000,
        ",,,;",
        "4,1,2,-;" + "\\x",
        "4,x,2,-;NVRM: Xid (PCI:0000:3b:00): 79",
        "(" * 5000,
    ]
    assert parse_text("\n".join(lines)) == ()


@given(
    st.text(), st.integers(0, 200), st.sampled_from(["NVRM: Xid (PCI:0000:3b:00): ", "oom-kill:constraint=", "", "x["])
)
def test_no_text_breaks_the_reader(text: str, priority: int, begin: str) -> None:
    for line in (text, f"{priority},1,1,-;{begin}{text}", f"<{priority}>[ 1.0] {begin}{text}"):
        for event in parse_text(line):
            assert event.kind
            assert event.text


@given(st.integers(0, 7), st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=15))
def test_no_process_name_makes_a_card_fail(level: int, name: str) -> None:
    lines = (
        f"{name}[12]: segfault at 0 ip 0 sp 0 error 4",
        f"Out of memory: Killed process 7 ({name}) total-vm:1kB, anon-rss:1kB",
        f"INFO: task {name}:7 blocked for more than 120 seconds.",
    )
    for line in lines:
        kinds = {event.kind for event in parse_text(f"{level},1,1,-;{line}")}
        assert not kinds & {KernelKind.XID, KernelKind.CARD_LOST}


def test_a_line_cut_short_in_a_hostile_group_name_is_given_up_at_once() -> None:
    # Tried in every possible way this would take hours, so it ends or the suite's own limit says so.
    name = ",cpuset=,mems_allowed=0,oom_memcg=,task_memcg=,task="
    assert parse_text(record("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)" + name * 150)) == ()
    assert parse_text(record("BTRFS error (device " + "a" * 4000 + " " * 4000)) == ()
