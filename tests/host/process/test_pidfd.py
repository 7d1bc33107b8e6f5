"""Processes that are held: signalled, waited for and reaped, also where there are no pidfds."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.host.process import pidfd
from holdfast.host.process.processes import identify
from holdfast.model.record import replace
from tests.other_kernels import has_pidfds, make_python
from tests.waiting import wait_until

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
SOURCE = Path(holdfast.__file__).parent
PAYLOAD = ROOT / "tests/host/payloads/held.py"
DOORS = {"host/process/pidfd.py", "host/process/libc.py"}
CALLS = re.compile(r"\b(?:os|signals?|libc)\.(?:pidfd_open|pidfd_send_signal|P_PIDFD)\b")


@pytest.mark.requirement("PROC-08")
@pytest.mark.parametrize("mode", ["same", "pidfd-enosys", "pidfd-eperm", "old-headers"])
def test_a_held_process_is_exactly_that_process_on_every_kernel(mode: str, tmp_path: Path) -> None:
    """Seen: conda's and uv's Pythons have no os.pidfd_open, nor have kernels before 5.3: each run failed."""
    command = [sys.executable, str(ROOT / "tests/other_kernels.py"), mode, sys.executable]
    if mode == "old-headers":
        command = [make_python(tmp_path / "python")]
    done = subprocess.run(
        [*command, "-I", "-S", str(PAYLOAD), str(SOURCE.parent)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "has_descriptor": mode in ("same", "old-headers") and has_pidfds(),
        "alive": True,
        "waited_in_vain": True,
        "signalled": True,
        "ended": True,
        "zombie_has_ended": True,
        "reaped": True,
        "reaped_twice": True,
        "signal_after_that": False,
        "held_after_that": True,
        "other_start": True,
        "thread_lives_on": True,
        "offload": 7,
        "offload_given_up": True,
    }


@pytest.mark.requirement("PROC-08")
def test_PROC_08_without_a_descriptor_a_later_user_of_the_number_is_not_touched() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as later:
        now = identify(later.pid)
        assert now is not None
        earlier = pidfd.HeldProcess(now.pid, now.start_ticks - 1, None)
        assert earlier.has_ended()
        assert not earlier.send(signal.SIGKILL)
        # It answers and ends by itself: a KILL on its way would have taken it.
        assert later.communicate(b"still here\n")[0] == b"still here\n"
    assert later.returncode == 0
    with subprocess.Popen(["true"]) as later:
        began = identify(later.pid)
        assert began is not None
        os.waitid(os.P_PID, later.pid, os.WEXITED | os.WNOWAIT)
        assert pidfd.HeldProcess(began.pid, began.start_ticks - 1, None).reap(block=False)
        assert os.waitid(os.P_PID, later.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None, "its status was taken"


def test_nothing_but_the_door_calls_for_pidfds() -> None:
    offenders = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        found = CALLS.search(path.read_text(encoding="utf-8"))
        if found is not None and name not in DOORS:
            offenders.append(f"{name}: {found[0]}")
    assert not offenders
    assert CALLS.search((SOURCE / "host/process/pidfd.py").read_text(encoding="utf-8")), (
        "the search finds what is there"
    )


def test_several_ends_are_waited_for_at_once() -> None:
    children = [subprocess.Popen(["sleep", "1000"]) for _ in range(3)]
    held = [pidfd.hold(child.pid) for child in children]
    known = [one for one in held if one is not None]
    try:
        assert pidfd.wait_for_ends(known, 0.0) == known
        for one in known[:2]:
            assert one.send(signal.SIGKILL)
        wait_until(lambda: pidfd.wait_for_ends(known, 0.0) == known[2:], what="two have ended")
        assert known[2].send(signal.SIGKILL)
        assert pidfd.wait_for_ends(known, 20.0) == []
    finally:
        for child in children:
            child.kill()
            child.wait()
        for one in known:
            one.close()


def test_another_boot_is_another_process_and_an_unknown_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    me = identify(os.getpid())
    assert me is not None
    assert pidfd.hold_process(replace(me, boot_id="another")) is None
    held = pidfd.hold_process(replace(me, boot_id=""))
    assert held is not None
    held.close()
    monkeypatch.setenv("HOLDFAST_BOOT_ID", "")
    held = pidfd.hold_process(me)
    assert held is not None
    held.close()
