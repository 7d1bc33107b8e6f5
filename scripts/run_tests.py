"""Run the tests: all of them side by side, then those that failed once more, alone and with patience.

Among thousands of tests with real processes, on cores that others use too, a few fail for want of time. Such a test
passes alone; a defect does not. Nothing is hidden: who passed only alone is listed and counted, and what does not
explicitly pass the second time fails the run. More than MOST failures, an error of collection, tests that were never
reached, or an interruption end the run at once: none of them is for want of time.

The run repeats exactly: the order of the files, fixed seeds, signals as at a login however it was started. With --seed
the order and the examples of properties are drawn from this seed, and without a number from one that is printed. No
process that the tests started outlives it.

Tests that import large libraries run after the others, in processes of their own (--apart): each fork of the others
would copy the map of half a gigabyte.

Usage: run_tests.py [--seed[=N]] [--apart=FOLDER]... [arguments of pytest]
Exit: 0 all passed, 1 tests failed, 124 the second pass was too slow, 128 + N ended by signal N, else pytest's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import NoReturn, TextIO

MOST = 15
PATIENCE = 4
SECOND_PASS_S = 1800
HANG_S = 1500
"""What a test costs its worker that not even its own limit ends (it blocks the signal): above all limits of tests."""
ENDING_S = 30.0
LOGIN_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
REPEATABLE = ("--randomly-seed=1", "--randomly-dont-reorganize", "--hypothesis-profile=repeatable")
# Half of a test's time is waiting. A worker that crashes is replaced as often as tests may fail.
WORKERS = 3 * len(os.sched_getaffinity(0)) // 2 or 1
SIDE_BY_SIDE = (
    *("-n", str(WORKERS), "--dist", "worksteal", f"--maxfail={MOST + 1}", f"--max-worker-restart={MOST + 1}"),
    *("-o", f"faulthandler_timeout={HANG_S}", "-o", "faulthandler_exit_on_timeout=true"),
)
ALONE = ("-n", "1", f"--max-worker-restart={MOST + 1}")
# Source: linux/prctl.h.
PR_SET_CHILD_SUBREAPER = 36


class Outcomes:
    """A plugin of pytest: how each test ended; "" for one that was not reached, "unreadable" for a file of tests."""

    def __init__(self) -> None:
        self.ends: dict[str, str] = {}

    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Note what there is to run."""
        for name in ids:
            self.ends.setdefault(name, "")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file whose tests nobody knows; with workers, pytest goes on without it."""
        if report.failed:
            self.ends[report.nodeid] = "unreadable"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take one of the three phases of a test; a failure in any of them stays."""
        if report.failed:
            self.ends[report.nodeid] = "failed"
        elif (report.skipped or report.when == "call") and self.ends.get(report.nodeid) != "failed":
            self.ends[report.nodeid] = report.outcome


def take_option(name: str, arguments: list[str]) -> list[str]:
    """Take an option of ours out of the arguments; answer the values it had."""
    own = [word for word in arguments if word.partition("=")[0] == name]
    arguments[:] = [word for word in arguments if word not in own]
    return [word.partition("=")[2] for word in own]


def choose_order(seeds: Sequence[str]) -> tuple[str, ...]:
    """What makes a run repeat. The second pass has the seed of the first one: it meets the same examples again."""
    if not seeds:
        return REPEATABLE
    seed = seeds[-1] or str(random.randrange(10**6))
    if not seed.isdecimal():
        sys.exit(f"--seed={seed} is not a number; for a seed that is drawn: --seed")
    print(f"order and examples of seed {seed}; once more: --seed={seed}", flush=True)
    return f"--randomly-seed={seed}", f"--hypothesis-seed={seed}"


def run_side_by_side(arguments: Sequence[str], apart: Sequence[str]) -> tuple[int, dict[str, str]]:
    """The first pass: all tests but those in the folders `apart`, then those."""
    status, ends = run_pytest([*SIDE_BY_SIDE, *arguments, *(f"--ignore={folder}" for folder in apart)])
    none = status == pytest.ExitCode.NO_TESTS_COLLECTED
    if apart and (none or status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)):
        then, more = run_pytest([*SIDE_BY_SIDE, *arguments, *apart])
        ends |= more
        if none or then not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            status = then
    return status, ends


def run_pytest(arguments: Sequence[str], limit_s: int = 0, **environment: str) -> tuple[int, dict[str, str]]:
    """Run pytest in a session of its own and end everything that it leaves; answer its status and each test's end.

    A `limit_s` of 0 is none; out of time the status is 124.
    """
    with tempfile.TemporaryFile("w+") as answer:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            _be_pytest(arguments, environment, answer)
        try:
            status = _wait(child, limit_s)
        finally:
            end_descendants()
        answer.seek(0)
        return status, json.loads(answer.read() or "{}")


def _be_pytest(arguments: Sequence[str], environment: dict[str, str], answer: TextIO) -> NoReturn:
    os.setsid()
    for number in LOGIN_SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(environment)
    # Without it every program that a test starts would be compiled anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # As `python -m pytest` has it, instead of the folder of this script.
    sys.path[0] = ""
    outcomes = Outcomes()
    status = pytest.main([*arguments], plugins=[outcomes])
    json.dump(outcomes.ends, answer)
    answer.flush()
    sys.exit(status)


def _wait(child: int, limit_s: int) -> int:
    """Wait for one child; orphans of the tests, which come to us, are reaped on the way."""

    def give_up(_number: int, _frame: FrameType | None) -> NoReturn:
        raise TimeoutError

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(limit_s)
    try:
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
    except TimeoutError:
        print(f"not over after {limit_s} s", flush=True)
        return 124
    finally:
        signal.alarm(0)


def end_descendants() -> None:
    """Kill what was started below this process until nothing is left; all of it becomes a child of ours by and by."""
    end = time.monotonic() + ENDING_S
    while time.monotonic() < end:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            children = [int(word) for word in file.read().split()]
        for pid in children:
            # Ours and not reaped yet, so the number cannot be another's.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            reaped, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not reaped:
            time.sleep(0.01)
    print(f"still there after {ENDING_S:g} s of KILL: processes {children}", flush=True)


def prepare() -> None:
    """Become the parent of every orphan below, and leave by way of the clean-up when a signal asks to."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        for other in LOGIN_SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        print(f"\nended by {signal.Signals(number).name}", flush=True)
        sys.exit(128 + number)

    for number in LOGIN_SIGNALS:
        # What whoever started this ignores (nohup) stays ignored, here.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)


def main(arguments: Sequence[str]) -> int:
    """Run both passes; answer the exit status."""
    arguments = list(arguments)
    order = choose_order(take_option("--seed", arguments))
    apart = take_option("--apart", arguments)
    prepare()
    status, ends = run_side_by_side([*order, *arguments], apart)
    failed = [name for name, end in ends.items() if end == "failed"]
    unreached = [name for name, end in ends.items() if end in ("", "unreadable")]
    alone: list[str] = []
    if status == pytest.ExitCode.TESTS_FAILED and 0 < len(failed) <= MOST and not unreached:
        print(f"\n{len(failed)} failed side by side; once more, alone:", flush=True)
        status, again = run_pytest([*order, *failed, *ALONE], SECOND_PASS_S, HOLDFAST_TEST_PATIENCE=str(PATIENCE))
        alone = [name for name in failed if again.get(name) == "passed"]
        # Only an explicit "passed" counts: a test that was skipped, or not reached, has failed.
        failed = [name for name in failed if name not in alone]
        status = status or (pytest.ExitCode.TESTS_FAILED if failed else pytest.ExitCode.OK)
    elif status == pytest.ExitCode.OK and (failed or unreached):
        status = pytest.ExitCode.TESTS_FAILED
    for words, names in (("did not pass", failed), ("was not reached", unreached[:MOST]), ("passed only alone", alone)):
        for name in names:
            print(f"{words}: {name}")
    passed = sum(end == "passed" for end in ends.values()) + len(alone)
    skipped = sum(end == "skipped" for end in ends.values())
    print(
        f"{passed} passed, {len(failed)} failed, {skipped} skipped, {len(unreached)} not reached; "
        f"{len(alone)} of them passed only alone",
        flush=True,
    )
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
