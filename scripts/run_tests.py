"""Run the tests: all of them side by side, then those that failed once more, alone and with patience.

Among thousands of tests with real processes, on cores that others use too, a few fail for want of time. Such a test
passes alone; a defect does not. Nothing is hidden: who passed only alone is listed and counted, and what does not
explicitly pass the second time fails the run. None of these is for want of time, and each ends the run: more than MOST
tests that fail, a file that cannot be read, an interruption, a run of which nothing is heard any more.

The run repeats: the tests are collected in one order, the seeds are fixed, the signals are those of a login however it
was started; which worker takes which test is not fixed. With --seed the order and the examples of properties are drawn
from this seed, and without a number from one that is printed. No process that the tests started outlives the run: one
that is still there when all tests have ended fails it, by its command line.

That nothing failed is no success: pytest must have ended by itself, and a worker must have found the tests. Where none
could, the files are read once more, in one process, for the name of the one at which the reading ends.

Tests that import large libraries run after the others, in processes of their own (--apart): each fork of the others
would copy the map of half a gigabyte.

A worker is killed when one test has held it for --hang seconds, which is above all limits of tests, and the run when
nothing was heard of any test for somewhat longer. The second pass may take SECOND_PASS times as long.

Usage: run_tests.py [--seed[=N]] [--hang=SECONDS] [--apart=FOLDER]... [arguments of pytest]
Exit: 0 all passed, 1 tests failed, 124 out of time, 128 + N ended by signal N, else pytest's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
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
    from collections.abc import Mapping, Sequence
    from types import FrameType
    from typing import NoReturn, TextIO

MOST = 15
PATIENCE = 4
SECOND_PASS = 3
HANG_S = 1500
SILENCE = 1.2
"""The run ends when nothing was heard for so many times --hang: no worker is left that could be killed for it."""
READING_S = 60.0
"""So long may one file be read, where it is to be named."""
SETTLE_S = 10.0
ENDING_S = 30.0
OUT_OF_TIME = 124
OWN_END = 64
"""Is added to pytest's status, so that a file which ends the process is not taken for pytest."""
LOGIN_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
REPEATABLE = ("--randomly-seed=1", "--randomly-dont-reorganize", "--hypothesis-profile=repeatable")
# Half of a test's time is waiting. A worker that crashes is replaced as often as tests may fail.
WORKERS = 3 * len(os.sched_getaffinity(0)) // 2
SIDE_BY_SIDE = ("-n", str(WORKERS), "--dist", "worksteal", f"--max-worker-restart={MOST + 1}")
ALONE = ("-n", "1", f"--max-worker-restart={MOST + 1}")
# Source: linux/prctl.h.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Outcomes:
    """A plugin of pytest: notes how each test ends, as it happens, and ends a run for which there is no second chance.

    A line of the notes maps names of tests to how they stand: "" not reached, "under way", "passed", "skipped",
    "failed"; a file of tests is "being read", then "read" or "unreadable" (workers tell the last one only). The last
    word on a name counts, also when pytest itself is killed.
    """

    def __init__(self, notes: TextIO) -> None:
        self.notes = notes
        self.ends: dict[str, str] = {}
        self.collected = False

    def _note(self, news: Mapping[str, str]) -> None:
        self.ends |= news
        print(json.dumps(news), file=self.notes, flush=True)

    def _names(self, end: str) -> list[str]:
        return [name for name, ended in self.ends.items() if ended == end]

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """Note which file is read."""
        if isinstance(collector, pytest.Module):
            self._note({collector.nodeid: "being read"})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file whose tests nobody knows; with workers, pytest would go on without it."""
        if report.failed:
            self._note({report.nodeid: "unreadable"})
        elif report.nodeid in self.ends:
            self._note({report.nodeid: "read"})

    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Note what there is to run; all files that cannot be read were told before."""
        self._take(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """The same where there are no workers (-n 0)."""
        if not session.config.option.collectonly:
            self._take([item.nodeid for item in session.items])

    def _take(self, ids: Sequence[str]) -> None:
        self.collected = True
        self._note({name: "" for name in ids if name not in self.ends})
        if self._names("unreadable"):
            pytest.exit("not all files of tests can be read", pytest.ExitCode.INTERRUPTED)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note which test runs."""
        self._note({nodeid: "under way"})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take one of the three phases of a test: a failure in any of them stays, and only the last one is the end."""
        before = self.ends.get(report.nodeid)
        if report.failed and before != "failed":
            self._note({report.nodeid: "failed"})
            if len(self._names("failed")) > MOST:
                pytest.exit(f"more than {MOST} tests failed", pytest.ExitCode.INTERRUPTED)
        elif report.skipped and before != "failed":
            self._note({report.nodeid: "skipped"})
        elif report.when == "teardown" and before == "under way":
            self._note({report.nodeid: "passed"})

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Do not take workers that ended while they read the files for a run that has nothing to do."""
        if not self.collected and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


def take_option(name: str, arguments: list[str]) -> list[str]:
    """Take an option of ours out of the arguments; answer the values it had."""
    own = [word for word in arguments if word.partition("=")[0] == name]
    arguments[:] = [word for word in arguments if word not in own]
    return [word.partition("=")[2] for word in own]


def choose_order(seeds: Sequence[str]) -> tuple[str, ...]:
    """What makes a run repeat. The second pass has the seed of the first one: it meets the same examples again.

    The order of sets (PYTHONHASHSEED) is set for all that is started from here.
    """
    os.environ["PYTHONHASHSEED"] = "0"
    if not seeds:
        return REPEATABLE
    seed = seeds[-1] or str(random.randrange(10**6))
    if not seed.isdecimal():
        sys.exit(f"--seed={seed} is not a number; for a seed that is drawn: --seed")
    os.environ["PYTHONHASHSEED"] = str(int(seed) % 2**32)
    print(f"order and examples of seed {seed}; once more: --seed={seed}", flush=True)
    return f"--randomly-seed={seed}", f"--hypothesis-seed={seed}"


def choose_hang(values: Sequence[str]) -> int:
    """How many seconds one test may hold its worker."""
    value = values[-1] if values else str(HANG_S)
    if not value.isdecimal() or int(value) == 0:
        sys.exit(f"--hang={value} is not a number of seconds")
    return int(value)


def split(arguments: Sequence[str], apart: Sequence[str]) -> list[list[str]]:
    """The arguments of each run of the first pass: what is not in the folders `apart`, then what is.

    Paths on the command line say what to run: no run gets those of the other, and without any of its own there is none.
    """
    paths = [word for word in arguments if word[:1] != "-" and os.path.exists(word.partition("::")[0])]
    inside = [path for path in paths if any(contains(folder, path) for folder in apart)]
    below = [folder for folder in apart if not paths or any(contains(path, folder) for path in paths)]
    runs = []
    if not paths or len(inside) < len(paths):
        rest = [word for word in arguments if word not in inside]
        runs.append([*rest, *(f"--ignore={folder}" for folder in apart)])
    if inside or below:
        others = [word for word in arguments if word not in paths]
        runs.append([*others, *inside, *(folder for folder in below if folder not in inside)])
    return runs


def contains(folder: str, path: str) -> bool:
    """Whether a path, or the file of a test's name, is in a folder or is it."""
    whole = os.path.realpath(folder)
    return os.path.commonpath((whole, os.path.realpath(path.partition("::")[0]))) == whole


def run_side_by_side(arguments: Sequence[str], apart: Sequence[str], hang_s: int) -> tuple[int, dict[str, str]]:
    """The first pass: all tests but those in the folders `apart`, then those."""
    statuses: list[int] = []
    ends: dict[str, str] = {}
    for run in split(arguments, apart):
        status, more = run_pytest([*SIDE_BY_SIDE, *watch(hang_s), *run], silent_s=hang_s * SILENCE)
        if status in (pytest.ExitCode.INTERNAL_ERROR, OUT_OF_TIME) and not any(more.values()):
            print("\nno worker has read all files; once more, in one process:", flush=True)
            reading_s = min(hang_s * SILENCE, READING_S)
            _, more = run_pytest([*run, "--collect-only", "-qq"], silent_s=reading_s)
        statuses.append(status)
        ends |= more
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
            break
    # Nothing in one of the runs is no failure as long as there was something in the other.
    something = [status for status in statuses if status != pytest.ExitCode.NO_TESTS_COLLECTED]
    return max(something, default=int(pytest.ExitCode.NO_TESTS_COLLECTED)), ends


def watch(hang_s: int) -> tuple[str, ...]:
    """What makes pytest kill a worker that one test holds."""
    return "-o", f"faulthandler_timeout={hang_s}", "-o", "faulthandler_exit_on_timeout=true"


def run_pytest(
    arguments: Sequence[str], *, patience: int = 1, limit_s: float = float("inf"), silent_s: float = float("inf")
) -> tuple[int, dict[str, str]]:
    """Run pytest in a session of its own and end everything that it leaves.

    Answers its status, 124 out of time, and how each test ended. A process that outlives a run that was not cut short
    is among them as "left behind"; that of a test that failed is not, since the second pass will show it.
    """
    with tempfile.TemporaryFile("w+") as notes:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            _be_pytest(arguments, patience, notes)
        try:
            status = _wait(child, notes.fileno(), limit_s, silent_s)
            left = wait_for_orphans() if status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) else {}
            end_descendants()
        except SystemExit:
            say_names("under way", [name for name, end in read_notes(notes).items() if end == "under way"])
            raise
        ends = {name: end for name, end in read_notes(notes).items() if end != "read"}
        ends |= {process: "left behind" for process, test in left.items() if ends.get(test) != "failed"}
        return status, ends


def read_notes(notes: TextIO) -> dict[str, str]:
    """How each test stands, after what was noted last; a line that was cut off in its middle is none."""
    notes.seek(0)
    ends: dict[str, str] = {}
    for line in notes:
        with contextlib.suppress(json.JSONDecodeError):
            ends |= json.loads(line)
    return ends


def _be_pytest(arguments: Sequence[str], patience: int, notes: TextIO) -> NoReturn:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.setsid()
    for number in (*LOGIN_SIGNALS, signal.SIGCHLD):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if patience != 1:
        os.environ["HOLDFAST_TEST_PATIENCE"] = str(patience)
    # Without it every program that a test starts would be compiled anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Whoever runs the tests may have options of pytest of his own (--collect-only): they are for other runs.
    os.environ.pop("PYTEST_ADDOPTS", None)
    # As `python -m pytest` has it, instead of the folder of this script.
    sys.path[0] = ""
    sys.exit(OWN_END + pytest.main([*arguments], plugins=[Outcomes(notes)]))


def _wait(child: int, notes: int, limit_s: float, silent_s: float) -> int:
    """Wait for one child, as long as its notes grow; orphans of the tests, which come to us, are reaped on the way."""
    began = heard = time.monotonic()
    length = 0

    def look(_number: int, _frame: FrameType | None) -> None:
        nonlocal heard, length
        now, before = time.monotonic(), length
        length = os.fstat(notes).st_size
        heard = now if length != before else heard
        if now > began + limit_s:
            raise TimeoutError(f"not over after {limit_s:g} s")
        if now > heard + silent_s:
            raise TimeoutError(f"nothing was heard of any test for {silent_s:g} s")

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 1, 1)
    try:
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                if code >= OWN_END:
                    return code - OWN_END
                if code < 0:
                    return 128 - code
                print(f"\npytest did not come to its end: a file or a plugin left with status {code}", flush=True)
                return int(pytest.ExitCode.INTERNAL_ERROR)
    except TimeoutError as error:
        print(f"\n{error}", flush=True)
        return OUT_OF_TIME
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def wait_for_orphans() -> dict[str, str]:
    """Wait a while for what is on its way out; answer the processes that stay, in words, and the test of each."""
    end = time.monotonic() + SETTLE_S
    while time.monotonic() < end:
        try:
            reaped, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return {}
        if not reaped:
            time.sleep(0.01)
    return dict(describe(pid) for pid in read_children())


def read_children() -> list[int]:
    """The children of this process: ours and not reaped yet, so that no number can be another's."""
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def describe(pid: int) -> tuple[str, str]:
    """A process in words, and the test that started it: pytest says so in the environment, if that was passed on."""
    texts = []
    for name in ("cmdline", "environ"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                texts.append(file.read().decode(errors="replace"))
        except OSError:
            texts.append("")
    command, variables = texts[0].replace("\0", " ").strip(), texts[1].split("\0")
    current = next((word for word in variables if word.startswith("PYTEST_CURRENT_TEST=")), "")
    test = current.partition("=")[2].rpartition(" (")[0]
    return f"process {pid} of {test or 'an unknown test'}: {command or 'unknown command'}", test


def end_descendants() -> None:
    """Kill what was started below this process until nothing is left; all of it becomes a child of ours by and by."""
    end = time.monotonic() + ENDING_S
    while time.monotonic() < end:
        for pid in read_children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            reaped, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not reaped:
            time.sleep(0.01)
    print(f"still there after {ENDING_S:g} s of KILL: processes {read_children()}", flush=True)


def prepare() -> None:
    """Become the parent of every orphan below, and leave by way of the clean-up when a signal asks to."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        for other in LOGIN_SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        print(f"\nended by {signal.Signals(number).name}", flush=True)
        sys.exit(128 + number)

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    for number in LOGIN_SIGNALS:
        # What whoever started this ignores (nohup) stays ignored, here.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)


def main(arguments: Sequence[str]) -> int:
    """Run the tests and clean up; answer the exit status."""
    arguments = list(arguments)
    order = choose_order(take_option("--seed", arguments))
    hang_s = choose_hang(take_option("--hang", arguments))
    apart = take_option("--apart", arguments)
    for folder in apart:
        if not os.path.isdir(folder):
            sys.exit(f"--apart={folder} is not a folder")
    runner = os.getpid()
    prepare()
    try:
        return run_twice([*order, *arguments], order, apart, hang_s)
    finally:
        if os.getpid() == runner:
            end_descendants()


def run_twice(arguments: Sequence[str], order: Sequence[str], apart: Sequence[str], hang_s: int) -> int:
    """Run both passes and say how each test ended; answer the exit status."""
    status, ends = run_side_by_side(arguments, apart, hang_s)
    failed = [name for name, end in ends.items() if end == "failed"]
    lost = {name: end or "not reached" for name, end in ends.items() if end not in ("passed", "skipped", "failed")}
    alone: list[str] = []
    if status == pytest.ExitCode.TESTS_FAILED and 0 < len(failed) <= MOST and not lost:
        print(f"\n{len(failed)} failed side by side; once more, alone:", flush=True)
        second = (*ALONE, *watch(hang_s), *order, *failed)
        status, again = run_pytest(second, patience=PATIENCE, limit_s=hang_s * SECOND_PASS)
        alone = [name for name in failed if again.get(name) == "passed"]
        # Only an explicit "passed" counts: a test that was skipped, or not reached, has failed.
        failed = [name for name in failed if name not in alone]
        lost = {name: end for name, end in again.items() if end == "left behind"}
    if status == pytest.ExitCode.OK and (failed or lost):
        status = pytest.ExitCode.TESTS_FAILED
    say_names("did not pass", failed)
    for end in ("left behind", "unreadable", "being read", "under way", "not reached"):
        say_names(end, [name for name in lost if lost[name] == end])
    say_names("passed only alone", alone)
    passed = sum(end == "passed" for end in ends.values()) + len(alone)
    skipped = sum(end == "skipped" for end in ends.values())
    unreached = sum(end != "left behind" for end in lost.values())
    print(
        f"{passed} passed, {len(failed)} failed, {skipped} skipped, {unreached} not reached; "
        f"{len(alone)} of them passed only alone",
        flush=True,
    )
    return int(status)


def say_names(how: str, names: Sequence[str]) -> None:
    """Name them, at most MOST."""
    for name in names[:MOST]:
        print(f"{how}: {name}")
    if len(names) > MOST:
        print(f"{how}: {len(names) - MOST} more")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
