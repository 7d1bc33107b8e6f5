"""A process is its pid, its start and its boot: whoever has the number later is somebody else and is left alone."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.host import processes
from holdfast.host.clock import boot_id
from holdfast.model.identity import ProcessId
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

SOURCE = str(Path(processes.__file__).parents[2])
PAYLOADS = Path(__file__).parent / "payloads"
NO_SUCH_PID = 2**22
"""The kernel's largest pid limit, never given out."""

LEADER_LEAVES = """
import ctypes, threading, os
threading.Thread(target=lambda: os.read(0, 1)).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


@contextlib.contextmanager
def running(*command: str, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        command or ("sleep", "1000"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        **options,  # type: ignore[call-overload]
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def identify(pid: int) -> ProcessId:
    found = processes.identify(pid)
    assert found is not None
    return found


@pytest.mark.requirement("B-69")
def test_PROC_08_a_recycled_pid_is_somebody_else() -> None:
    rights = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *rights, "--pid", "--fork", "--mount-proc", sys.executable, str(PAYLOADS / "recycle.py")]
    if subprocess.run([*command[:-2], "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no PID namespace can be made here")
    done = subprocess.run([*command, SOURCE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "same_pid": True,
        "alive_before": True,
        "gone": True,
        "first_alive": False,
        "first_pidfd": None,
        "signalled": False,
        "second_alive": True,
        "second_state": "S",
    }


def test_we_know_ourselves() -> None:
    me = processes.identify_self()
    stat = processes.read_stat(os.getpid())
    assert stat is not None
    assert (me.pid, me.start_ticks, me.boot_id) == (os.getpid(), stat.start_ticks, boot_id())
    assert (stat.ppid, stat.pgid, stat.sid) == (os.getppid(), os.getpgid(0), os.getsid(0))
    assert processes.is_alive(me)


def test_a_name_with_spaces_and_brackets_does_not_shift_the_fields(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    with running(str(program), "1000") as child:
        wait_until(lambda: "sleep" in os.readlink(f"/proc/{child.pid}/exe"), what="exec")
        stat = processes.read_stat(child.pid)
        assert stat is not None
        assert (stat.comm, stat.ppid, stat.threads) == ("a) R 1 (b", os.getpid(), 1)


def test_nobody_has_this_number() -> None:
    nobody = ProcessId(NO_SUCH_PID, 1, boot_id())
    assert processes.read_stat(NO_SUCH_PID) is None
    assert processes.identify(NO_SUCH_PID) is None
    assert not processes.is_alive(nobody)
    assert processes.open_pidfd(nobody) is None
    assert not processes.send_signal(nobody, signal.SIGKILL)
    assert not processes.has_living_threads(NO_SUCH_PID)
    assert processes.read_environ(NO_SUCH_PID) is None
    assert processes.read_command(NO_SUCH_PID) is None
    assert processes.read_uid(NO_SUCH_PID) is None


@pytest.mark.requirement("PROC-08")
def test_another_start_or_another_boot_is_another_process() -> None:
    with running() as child:
        process = identify(child.pid)
        for other in (replace(process, start_ticks=process.start_ticks + 1), replace(process, boot_id="before")):
            assert not processes.is_alive(other)
            assert processes.open_pidfd(other) is None
            assert not processes.send_signal(other, signal.SIGKILL)
        assert child.poll() is None
        assert processes.is_alive(process)


def test_a_signal_reaches_exactly_one() -> None:
    with running() as child, running() as other:
        assert processes.send_signal(identify(child.pid), signal.SIGTERM)
        assert child.wait() == -signal.SIGTERM
        assert other.poll() is None


def test_a_zombie_is_dead() -> None:
    with running("true") as child:
        process = identify(child.pid)
        wait_until(lambda: getattr(processes.read_stat(child.pid), "state", None) == "Z", what="a zombie")
        assert not processes.is_alive(process)
        assert not processes.has_living_threads(child.pid)


def test_a_zombie_whose_thread_lives_is_alive() -> None:
    with running(sys.executable, "-c", LEADER_LEAVES) as child:
        assert child.stdout is not None
        child.stdout.readline()
        process = identify(child.pid)
        wait_until(lambda: getattr(processes.read_stat(child.pid), "state", None) == "Z", what="a zombie leader")
        assert processes.is_alive(process)


@pytest.mark.requirement("PROC-08")
def test_too_many_open_files_do_not_make_a_process_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_BOOT_ID", "b")  # so that asking for the boot needs no file
    with running() as child:
        process = identify(child.pid)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        held = [os.open(os.devnull, os.O_RDONLY)]
        while held[-1] < highest:
            held.append(os.open(os.devnull, os.O_RDONLY))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(highest, held[-1]) + 1, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                processes.open_pidfd(process)
            with pytest.raises(OSError, match="Too many open files"):
                processes.send_signal(process, signal.SIGTERM)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for descriptor in held:
                os.close(descriptor)
        assert processes.is_alive(process)


def test_a_run_is_found_by_its_marker_and_nobody_else() -> None:
    run_id = f"20261120-104501-marked-{os.getpid():04x}"
    environment = {**os.environ, "HOLDFAST_RUN_ID": run_id, "HOLDFAST_ATTEMPT": "2"}
    longer = {**environment, "HOLDFAST_RUN_ID": f"{run_id}0"}
    with running(env=environment) as child, running(env=longer), running("sleep", "999", run_id):
        process = identify(child.pid)
        wait_until(lambda: processes.find_marked(run_id) == [process], what="the marked one")
        assert processes.find_marked(run_id, 2) == [process]
        assert processes.find_marked(run_id, 1) == []
        child.kill()
        wait_until(lambda: processes.find_marked(run_id) == [], what="its end")


def test_what_people_see_of_a_process() -> None:
    with running("sleep", "1000", env={"PATH": os.environ["PATH"], "A": "b=c"}) as child:
        wait_until(lambda: processes.read_command(child.pid) == "sleep 1000", what="exec")
        assert (processes.read_environ(child.pid) or {})["A"] == "b=c"
        assert processes.read_uid(child.pid) == os.getuid()
        assert child.pid in processes.list_pids()
    assert processes.user_name(0) == "root"
    assert processes.user_name(2**31 + 5) == str(2**31 + 5)


def test_a_kernel_thread_is_named_in_brackets() -> None:
    thread = next((pid for pid in processes.list_pids() if getattr(processes.read_stat(pid), "ppid", 0) == 2), None)
    if thread is None:
        pytest.skip("no kernel thread can be seen from here")
    assert (processes.read_command(thread) or "").startswith("[")
