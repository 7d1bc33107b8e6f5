"""A process is its pid, its start and its boot: whoever has the number later is somebody else and is left alone."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.host.clock import boot_id
from holdfast.host.process import pidfd, processes
from holdfast.model.identity import ProcessId
from holdfast.model.record import replace
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

SOURCE = str(Path(processes.__file__).parents[3])
PAYLOADS = Path(__file__).parents[1] / "payloads"
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
        "first_held": None,
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
    assert pidfd.hold_process(nobody) is None
    assert not pidfd.send_signal(nobody, signal.SIGKILL)
    assert not processes.has_living_threads(NO_SUCH_PID)
    assert processes.read_environ(NO_SUCH_PID) is None
    assert processes.read_command(NO_SUCH_PID) is None
    assert processes.read_uid(NO_SUCH_PID) is None


@pytest.mark.requirement("PROC-08")
def test_another_start_or_another_boot_is_another_process() -> None:
    with running("cat") as child:
        assert child.stdin is not None
        assert child.stdout is not None
        process = identify(child.pid)
        for other in (
            replace(process, start_ticks=process.start_ticks + 1),
            replace(process, start_ticks=process.start_ticks - 1),
            replace(process, boot_id="before"),
        ):
            assert not processes.is_alive(other)
            assert pidfd.hold_process(other) is None
            assert not pidfd.send_signal(other, signal.SIGKILL)
        # A process with a KILL on its way does not come back to answer.
        child.stdin.write(b"still here\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"still here\n"
        assert processes.is_alive(process)


@pytest.mark.requirement("DIAG-05")
def test_DIAG_05_exactly_the_signals_that_a_process_handles_are_said_to_be_handled() -> None:
    handler = "import signal; signal.signal(signal.SIGUSR1, print); print('ready', flush=True); input()"
    with running(sys.executable, "-S", "-c", handler) as child:
        assert child.stdout is not None
        child.stdout.readline()
        caught = [number for number in range(66) if processes.handles_signal(child.pid, number)]
        assert caught == [signal.SIGINT, signal.SIGUSR1]
    assert not processes.handles_signal(NO_SUCH_PID, signal.SIGUSR1)


def test_a_signal_reaches_exactly_one() -> None:
    with running() as child, running() as other:
        assert pidfd.send_signal(identify(child.pid), signal.SIGTERM)
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
                pidfd.hold_process(process)
            with pytest.raises(OSError, match="Too many open files"):
                pidfd.send_signal(process, signal.SIGTERM)
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


ENDLESS = """
import ctypes, mmap, struct
size = 1 << 30
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_ulong
fields = [0, 0, *map(int, open("/proc/self/stat").read().rpartition(")")[2].split()[1:])]
code, stack, data, begin, arguments = fields[24:26], fields[26], fields[43:45], fields[45], fields[46:48]
# struct prctl_mm_map: no other auxv, no other program. Source: linux/prctl.h, proc_pid_stat(5)
wanted = (*code, *data, begin, libc.sbrk(0), stack, *arguments, at, at + size - 4096, 0, 0, 0xFFFFFFFF)
map = struct.pack("12Q2I", *wanted)
print("ready" if libc.prctl(35, 14, map, ctypes.c_ulong(len(map)), ctypes.c_ulong(0)) == 0 else "refused", flush=True)
input()
"""


def test_an_environment_without_end_is_read_to_a_bound() -> None:
    """Any process can say that a gigabyte of its memory is its environment."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            pytest.skip("this kernel lets nobody say where its environment is")
        assert len(processes.read_environment(child.pid) or b"") == processes.MOST_ENVIRONMENT
        assert len(processes.read_environ(child.pid) or {}) < 2
        assert not processes.find_marked("20261120-104501-nobody-0a1b")
        child.communicate("\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads what is another account's")
def test_an_account_with_many_long_environments_hides_its_own_processes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = f"20261120-104501-marked-{os.getpid():04x}"
    environment = {"PATH": os.environ["PATH"], "A": "0" * 100_000, "HOLDFAST_RUN_ID": run_id, "HOLDFAST_ATTEMPT": "2"}
    theirs = {"env": environment, "user": 54321, "group": 54321, "extra_groups": []}
    with running(**theirs) as first, running(**theirs) as second, running(env=environment) as own:
        everybody = [identify(child.pid) for child in (first, second, own)]
        wait_until(lambda: sorted(map(str, processes.find_marked(run_id))) == sorted(map(str, everybody)), what="all")
        monkeypatch.setattr(processes, "MOST_OF_ACCOUNT", 150_000)
        found = processes.find_marked(run_id)
        assert (identify(own.pid) in found, len(found)) == (True, 2)


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
