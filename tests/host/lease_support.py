"""Real processes that take, hold and wait for leases, steered line by line from the test."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.host import clock
from holdfast.host.lease import leases
from holdfast.host.process import processes
from holdfast.model.lease import BusyReason, LeasedDevice, LeasePhase, LeaseRecord
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.host.lease.area import LeaseArea

CARDS = tuple(LeasedDevice(f"GPU-{index:08x}-0000-4000-8000-000000000000", index, "Test card") for index in range(8))
NOBODY = 65534
DEADLINE_S = LIMIT_S


def slice_of(card: LeasedDevice, number: int) -> LeasedDevice:
    """A MIG slice of a card."""
    return LeasedDevice(card.card_uuid, card.index, card.name, f"MIG-{number:08x}-0000-4000-8000-000000000000")


def record(number: int, *devices: LeasedDevice, **changes: Any) -> LeaseRecord:
    """A record of a run of ours, whose supervisor is this process."""
    uid = os.geteuid()
    values: dict[str, Any] = {
        "run_id": f"20261120-104501-test-{number:04x}",
        "attempt": 1,
        "user": processes.user_name(uid),
        "uid": uid,
        "host": "testbox",
        "since": clock.utc_now(),
        "phase": LeasePhase.RUN,
        "devices": devices or (CARDS[0],),
        "supervisor": processes.identify_self(),
        "command": "python train.py",
    }
    return LeaseRecord(**{**values, **changes})


def take(area: LeaseArea, wanted: LeaseRecord) -> leases.HeldLease:
    """A lease that must be granted."""
    outcome = leases.acquire_lease(area, wanted)
    assert isinstance(outcome, leases.HeldLease), outcome
    return outcome


def refused(area: LeaseArea, wanted: LeaseRecord) -> tuple[BusyReason, ...]:
    """Why a lease that must be refused was refused."""
    outcome = leases.acquire_lease(area, wanted)
    if isinstance(outcome, leases.HeldLease):
        outcome.release()
        pytest.fail(f"granted: {wanted.run_id}")
    return outcome


class Line:
    """One end of a conversation in JSON lines over two pipes."""

    def __init__(self, reader: int, writer: int) -> None:
        self.reader, self.writer = reader, writer
        self._buffer = b""

    def send(self, value: object) -> None:
        """Say one thing."""
        os.write(self.writer, json.dumps(value).encode() + b"\n")

    def receive(self, timeout_s: float = DEADLINE_S) -> Any:
        """Hear one thing; EOFError when the other end is gone, AssertionError when it stays silent."""
        end = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self.reader], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"silent for {timeout_s} s"
            data = os.read(self.reader, 65536)
            if not data:
                raise EOFError
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def close(self) -> None:
        """Hang up."""
        os.close(self.reader)
        os.close(self.writer)


class Child:
    """A forked process that runs `work(line)`; optionally as another account. A context manager that ends it."""

    def __init__(self, work: Callable[[Line], None], *, uid: int | None = None) -> None:
        down, up = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(work, Line(down[0], up[1]), uid)
        os.close(down[0])
        os.close(up[1])
        self.line = Line(up[0], down[1])
        self._reaped = False

    def _run(self, work: Callable[[Line], None], line: Line, uid: int | None) -> None:
        code = 1
        try:
            # A copy of the test's own lock descriptors would hold its cards.
            for name in os.listdir("/proc/self/fd"):
                if int(name) not in (0, 1, 2, line.reader, line.writer):
                    with contextlib.suppress(OSError):
                        os.close(int(name))
            if uid is not None:
                _load_everything()
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            work(line)
            code = 0
        except (EOFError, BrokenPipeError):
            code = 0
        except BaseException:  # noqa: BLE001 - the child's only barrier: say it and end
            with contextlib.suppress(OSError):
                line.send({"error": traceback.format_exc()})
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(code)

    def receive(self, timeout_s: float = DEADLINE_S) -> Any:
        """What the child says next; its traceback when it failed."""
        said = self.line.receive(timeout_s)
        assert not (isinstance(said, dict) and "error" in said), said["error"]
        return said

    def send(self, value: object = True) -> None:
        """Tell the child something."""
        self.line.send(value)

    def kill(self) -> None:
        """SIGKILL, and wait until it is reaped."""
        if not self._reaped:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._reaped = True

    def __enter__(self) -> Child:  # noqa: PYI034 - typing.Self came with 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.line.close()


def _load_everything() -> None:
    """Load what is loaded on first use: the interpreter may lie where other accounts cannot read it."""
    import codecs
    import ctypes
    import pwd

    from holdfast.host.process import libc

    assert codecs.lookup("ascii").name == "ascii"
    assert pwd.getpwuid(0).pw_name
    libc.set_child_subreaper(False)
    ctypes.CDLL(None)


def hold(area: LeaseArea, number: int, *devices: LeasedDevice, uid: int | None = None, **changes: Any) -> Child:
    """A process that takes a lease, says "held" or the reasons, and gives it back when it is told anything."""

    def work(line: Line) -> None:
        outcome = leases.acquire_lease(area, record(number, *devices, **changes))
        if not isinstance(outcome, leases.HeldLease):
            line.send([reason.holder for reason in outcome])
            return
        line.send("held")
        line.receive(600)
        outcome.release()
        line.send("released")
        line.receive(600)

    return Child(work, uid=uid)
