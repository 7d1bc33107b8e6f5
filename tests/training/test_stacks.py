"""A training that hangs writes its own stacks when it is asked, without ptrace, and goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.host.process import processes
from holdfast.training.reporting import stacks
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

PREAMBLE = """
import ctypes, os, signal, sys, threading, time
from holdfast.training.reporting import stacks
number = stacks.install(sys.argv[1])
"""
HANGS = {
    "in time.sleep": "def hang_here():\n    time.sleep(1000)",
    "in a deadlock": "def hang_here():\n    lock = threading.Lock()\n    lock.acquire()\n    lock.acquire()",
    "in a busy loop": "def hang_here():\n    while True:\n        pass",
    # PyDLL keeps the interpreter's lock during the call: no Python code runs in any thread. A sleep would end when it
    # is asked; a read goes on: the handler is one of SA_RESTART. Source: signal(7), "Interruption of system calls".
    "in a C call with the lock": (
        "def hang_here():\n    ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)"
    ),
}


@contextlib.contextmanager
def child(path: Path, body: str) -> Iterator[subprocess.Popen[str]]:
    """A process that installs the facility for `path` and runs `body`; killed at the end."""
    argv = [sys.executable, "-c", PREAMBLE + body, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_record(path: Path) -> dict[str, Any]:
    value = json.loads((path.parent / "stacks.json").read_bytes())
    assert isinstance(value, dict)
    return value


def wait_for_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == line


@pytest.mark.requirement("LIB-15")
@pytest.mark.parametrize("hang", HANGS.values(), ids=HANGS.keys())
def test_LIB_15_a_hung_process_writes_the_stacks_of_all_threads(tmp_path: Path, hang: str) -> None:
    path = tmp_path / "stacks.txt"
    body = f"""
def other_thread():
    time.sleep(1000)
threading.Thread(target=other_thread, daemon=True).start()
{hang}
print("hanging", flush=True)
hang_here()
"""
    with child(path, body) as process:
        wait_for_line(process, "hanging")
        record = read_record(path)
        assert record["pid"] == process.pid
        stat = processes.read_stat(process.pid)
        assert stat is not None
        assert record["start_ticks"] == stat.start_ticks
        assert stacks.handles(process.pid, record["signal"])

        def ask() -> bool:
            # Asked again until it is in the function: right after the print it is not there yet.
            process.send_signal(record["signal"])
            return wait_until(lambda: path.stat().st_size > 0 and "hang_here" in path.read_text(), 0.1)

        wait_until(lambda: _holds(ask), what="the stack of the hanging function")
        text = path.read_text()
        assert "other_thread" in text
        assert text.count("Thread 0x") + text.count("Current thread 0x") >= 2
        # Asking does not end it: asked once more it answers once more.
        before = path.read_text().count("hang_here")
        process.send_signal(record["signal"])
        wait_until(lambda: path.read_text().count("hang_here") > before, what="another answer")
        assert process.poll() is None


def _holds(ask: Any) -> bool:
    try:
        return bool(ask())
    except AssertionError:
        return False


@pytest.mark.requirement("LIB-15")
def test_LIB_15_the_process_goes_on_after_each_of_100_questions(tmp_path: Path) -> None:
    path = tmp_path / "stacks.txt"
    body = "print('ready', flush=True)\nline = sys.stdin.readline()\nprint('went on', line, flush=True)"
    with child(path, body) as process:
        wait_for_line(process, "ready")
        number = read_record(path)["signal"]
        for _ in range(100):
            process.send_signal(number)
        wait_until(lambda: "most recent call first" in path.read_text(), what="a stack")
        out, _ = process.communicate("here\n", timeout=LIMIT_S)
        assert out.strip() == "went on here"
        assert process.returncode == 0


def test_the_file_is_the_owner_s_and_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "stacks.txt"
    path.write_text("from before\n")
    path.chmod(0o600)
    with child(path, "print('ready', flush=True)\nsys.stdin.readline()") as process:
        wait_for_line(process, "ready")
        process.send_signal(read_record(path)["signal"])
        wait_until(lambda: "most recent call first" in path.read_text(), what="a stack")
    assert path.read_text().startswith("from before\n")
    assert os.stat(tmp_path / "stacks.json").st_mode & 0o777 == 0o600


def test_a_process_that_installed_nothing_handles_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert stacks.handles(process.pid, signal.SIGRTMIN + 11) is False
        process.kill()
    assert stacks.handles(process.pid, signal.SIGRTMIN + 11) is None, "gone is not known"


def test_after_an_exec_the_record_names_a_process_that_no_longer_listens(tmp_path: Path) -> None:
    path = tmp_path / "stacks.txt"
    argv = [sys.executable, "-c", "print('ready', flush=True); input()"]
    with child(path, f"os.execv({sys.executable!r}, {argv!r})") as process:
        wait_for_line(process, "ready")
        record = read_record(path)
        assert record["pid"] == process.pid
        assert stacks.handles(process.pid, record["signal"]) is False


@pytest.mark.parametrize(
    "taken",
    [
        "signal.signal(signal.SIGRTMIN + 11, lambda *a: None)",
        "signal.signal(signal.SIGRTMIN + 11, signal.SIG_IGN)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 11])",
        "ctypes.CDLL(None).signal(signal.SIGRTMIN + 11, ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p))",
    ],
    ids=["handled", "ignored", "blocked", "handled by C"],
)
def test_a_signal_that_somebody_uses_is_left_alone(tmp_path: Path, taken: str) -> None:
    body = f"stacks.uninstall()\n{taken}\nprint(stacks.install(sys.argv[1]) - signal.SIGRTMIN, flush=True)"
    with child(tmp_path / "stacks.txt", body) as process:
        wait_for_line(process, "12")
        assert read_record(tmp_path / "stacks.txt")["signal"] == signal.SIGRTMIN + 12


def test_when_all_are_used_nothing_is_installed(tmp_path: Path) -> None:
    body = """
stacks.uninstall()
for offset in stacks.PREFERRED:
    signal.signal(signal.SIGRTMIN + offset, lambda *a: None)
print(stacks.install(sys.argv[1]), flush=True)
"""
    with child(tmp_path / "stacks.txt", body) as process:
        wait_for_line(process, "None")
    assert not (tmp_path / "stacks.json").exists()


@pytest.mark.parametrize("obstacle", ["missing", "fifo", "link", "directory"])
def test_a_file_that_cannot_be_ours_installs_nothing(tmp_path: Path, obstacle: str) -> None:
    path = tmp_path / "place" / "stacks.txt"
    if obstacle != "missing":
        path.parent.mkdir()
    if obstacle == "fifo":
        os.mkfifo(path)
    elif obstacle == "link":
        (tmp_path / "victim").write_text("")
        path.symlink_to(tmp_path / "victim")
    elif obstacle == "directory":
        path.mkdir()
    assert stacks.install(str(path)) is None
    assert not (path.parent / "stacks.json").exists()


def test_uninstalling_takes_the_record_and_the_handler_away(tmp_path: Path) -> None:
    first, second = str(tmp_path / "stacks.txt"), str(tmp_path / "stacks.rank-1.txt")
    number = stacks.install(first)
    try:
        assert number is not None
        assert stacks.install(first) == number
        assert stacks.install(second) == number, "another place takes over"
        assert not os.path.exists(stacks.record_path(first))
        assert os.path.exists(stacks.record_path(second))
        assert stacks.handles("self", number)
    finally:
        stacks.uninstall()
    assert not stacks.handles("self", number)
    assert not os.path.exists(stacks.record_path(second))
    stacks.uninstall()


def test_a_forked_child_leaves_its_parent_s_record(tmp_path: Path) -> None:
    body = """
pid = os.fork()
if pid == 0:
    stacks.uninstall()
    os._exit(0)
os.waitpid(pid, 0)
print(os.path.exists(stacks.record_path(sys.argv[1])), stacks.handles("self", number), flush=True)
"""
    with child(tmp_path / "stacks.txt", body) as process:
        wait_for_line(process, "True True")


def test_a_process_without_standard_streams_keeps_their_numbers_free(tmp_path: Path) -> None:
    body = """
saved = os.dup(1)
stacks.uninstall()
os.close(2)
stacks.install(sys.argv[1])
os.write(saved, b"free\\n" if not os.path.exists("/proc/self/fd/2") else b"taken\\n")
"""
    with child(tmp_path / "stacks.txt", body) as process:
        wait_for_line(process, "free")


QUIT = "stacks.answer_quit()\nprint('ready', flush=True)\nsys.stdin.readline()\nprint('went on', flush=True)"


@pytest.mark.requirement("LIB-21")
def test_LIB_21_quit_is_a_wish_for_stacks_and_the_process_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "stacks.txt"
    with child(path, QUIT) as process:
        wait_for_line(process, "ready")
        process.send_signal(signal.SIGQUIT)
        wait_until(lambda: "most recent call first" in path.read_text(), what="a stack")
        out, _ = process.communicate("\n", timeout=LIMIT_S)
    assert out.strip() == "went on"
    assert process.returncode == 0


@pytest.mark.requirement("LIB-21")
def test_LIB_21_without_a_supervisor_the_stacks_are_on_standard_error(tmp_path: Path) -> None:
    code = f"import sys\nfrom holdfast.training.reporting import stacks\n{QUIT}"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for_line(process, "ready")
        process.send_signal(signal.SIGQUIT)
        assert process.stderr is not None
        assert "most recent call first" in process.stderr.readline()
        process.communicate("\n", timeout=LIMIT_S)
    assert process.returncode == 0


@pytest.mark.requirement("LIB-21")
def test_LIB_21_a_quit_that_the_script_handles_itself_stays_its_own(tmp_path: Path) -> None:
    body = f"signal.signal(signal.SIGQUIT, lambda *_: os.write(1, b'mine\\n'))\n{QUIT}"
    path = tmp_path / "stacks.txt"
    with child(path, body) as process:
        wait_for_line(process, "ready")
        process.send_signal(signal.SIGQUIT)
        process.send_signal(read_record(path)["signal"])
        wait_until(path.read_text, what="the stacks that the other signal asks for")
        out, _ = process.communicate("\n", timeout=LIMIT_S)
    assert out.split() == ["mine", "went", "on"]
    assert path.read_text().count("most recent call first") == 1
