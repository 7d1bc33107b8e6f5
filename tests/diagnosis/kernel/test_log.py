"""Reading the kernel's log: the real one, one in a file or FIFO, and one that may not be read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.diagnosis.evidence import KernelKind
from holdfast.diagnosis.kernel import log
from holdfast.diagnosis.kernel.log import read_export, read_kernel_log
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.diagnosis.evidence import KernelLog, Reading

pytestmark = pytest.mark.process

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, gone"
PATIENT_S = LIMIT_S


def write_log(path: Path, *records: tuple[int, str]) -> str:
    path.write_text("".join(f"4,{number},{number}000000,-;{text}\n" for number, text in records))
    return str(path)


def test_a_log_in_a_file_is_read_from_a_position_on(tmp_path: Path) -> None:
    source = write_log(tmp_path / "kmsg", (0, "boot"), (1, XID), (2, "nfs: server a OK"), (3, "other"))
    whole = read_kernel_log(source=source, deadline_s=PATIENT_S).value
    assert whole is not None
    assert [event.kind for event in whole.events] == [KernelKind.XID, KernelKind.NFS]
    assert not whole.lost
    newer = read_kernel_log(1, source=source, deadline_s=PATIENT_S).value
    assert newer is not None
    assert [event.sequence for event in newer.events] == [2]
    assert not newer.lost


def test_a_gap_after_the_position_is_said(tmp_path: Path) -> None:
    source = write_log(tmp_path / "kmsg", (50, "later"), (51, XID))
    found = read_kernel_log(7, source=source, deadline_s=PATIENT_S).value
    assert found is not None
    assert found.lost
    assert found.first_seconds == 50.0


def test_a_fifo_stands_in_for_the_device(tmp_path: Path) -> None:
    source = str(tmp_path / "kmsg")
    os.mkfifo(source)
    keep = os.open(source, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(keep, f"4,1,1,-;{XID}\n".encode())
        found = read_kernel_log(source=source, deadline_s=PATIENT_S).value
    finally:
        os.close(keep)
    assert found is not None
    assert [event.kind for event in found.events] == [KernelKind.XID]


@pytest.mark.requirement("GPUH-04")
def test_a_log_that_is_not_there_is_unread_and_not_clean(tmp_path: Path) -> None:
    found = read_kernel_log(source=str(tmp_path / "none"), deadline_s=PATIENT_S)
    assert not found.known
    assert found.value is None
    assert "No such file" in found.unread


def test_a_log_that_does_not_answer_costs_the_deadline_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(_: str) -> object:
        import signal

        signal.pause()
        return iter(())

    monkeypatch.setattr(log, "_records", hang)
    found = read_kernel_log(source=str(tmp_path), deadline_s=0.2)
    assert "no answer within 0.2 s" in found.unread


def test_trust_in_injected_lines_is_an_argument(tmp_path: Path) -> None:
    source = tmp_path / "kmsg"
    source.write_text(f"12,1,1,-;{XID}\n")
    plain = read_kernel_log(source=str(source), deadline_s=PATIENT_S).value
    believed = read_kernel_log(source=str(source), deadline_s=PATIENT_S, trust_injected=True).value
    assert plain is not None
    assert believed is not None
    assert [event.trusted for event in (*plain.events, *believed.events)] == [False, True]


def test_the_real_log_is_read_or_its_refusal_is_said() -> None:
    found = read_kernel_log(deadline_s=PATIENT_S, fall_back=False)
    assert (found.value is None) == bool(found.unread)


def test_a_device_without_a_line_tells_nothing() -> None:
    # Reading /dev/null ends at once, which is how a sandbox's stand-in for the log behaves.
    found = read_kernel_log(source=os.devnull, deadline_s=PATIENT_S)
    assert "no line at all" in found.unread


def fake_tool(directory: Path, name: str, output: bytes, code: int = 0) -> None:
    directory.mkdir(exist_ok=True)
    (directory / f"{name}.out").write_bytes(output)
    words = "echo not permitted >&2\n" if code else ""
    script = directory / name
    script.write_text(f"#!/bin/sh\ncat {directory}/{name}.out\n{words}exit {code}\n")
    script.chmod(0o755)


@pytest.fixture
def closed_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A box on which this account may not open the log; tools are found in the directory that is answered."""
    monkeypatch.setattr(log, "SOURCE", str(tmp_path / "none"))
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return tools


def read_closed(closed_device: Path) -> Reading[KernelLog]:
    return read_kernel_log(source=log.SOURCE, deadline_s=PATIENT_S)


EXPORT = (
    b"MESSAGE=nothing\nSYSLOG_FACILITY=0\n_SOURCE_MONOTONIC_TIMESTAMP=1000000\n\n"
    b"MESSAGE\n" + len(XID).to_bytes(8, "little") + XID.encode() + b"\n"
    b"SYSLOG_FACILITY=0\n_SOURCE_MONOTONIC_TIMESTAMP=2000000\n\n"
    b"MESSAGE=" + XID.encode() + b"\nSYSLOG_FACILITY=1\n\n"
    b"MESSAGE=" + XID.encode() + b"\n"
)


def test_the_journal_is_asked_where_the_device_is_closed(closed_device: Path) -> None:
    fake_tool(closed_device, "journalctl", EXPORT)
    found = read_closed(closed_device).value
    assert found is not None
    assert [(event.seconds, event.trusted) for event in found.events] == [(2.0, True), (-1.0, False), (-1.0, False)]
    assert found.lost


def test_dmesg_is_asked_when_the_journal_has_nothing(closed_device: Path) -> None:
    fake_tool(closed_device, "journalctl", b"")
    fake_tool(closed_device, "dmesg", f"<4>[ 3.0] {XID}\n".encode())
    found = read_closed(closed_device).value
    assert found is not None
    assert [event.seconds for event in found.events] == [3.0]


@pytest.mark.requirement("GPUH-04")
def test_every_refusal_is_named_when_nobody_may_read_it(closed_device: Path) -> None:
    fake_tool(closed_device, "journalctl", b"")
    fake_tool(closed_device, "dmesg", b"", code=1)
    unread = read_closed(closed_device).unread
    assert "No such file" in unread
    assert "journalctl: no kernel lines" in unread
    assert "dmesg: not permitted" in unread


def test_a_damaged_export_is_read_as_far_as_it_goes() -> None:
    torn = b"MESSAGE\n" + (10**6).to_bytes(8, "little") + b"short"
    assert [line.text for line in read_export(b"MESSAGE=a\n\n" + torn)] == ["a", "short"]
    assert list(read_export(b"\n\n\n=\n")) == []
