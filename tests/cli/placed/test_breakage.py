"""What breaks at a place while runs are ordered, run and followed: its disk, its home, its clock, its key, itself."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.canary import Canary
from tests.cli.conftest import ENTRY, Ended
from tests.cli.placed.following import Follower
from tests.desk.route.loop import add_place
from tests.sshd import Sshd, end_masters, skip_without_rights
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Command

pytestmark = [pytest.mark.cli, pytest.mark.slow, pytest.mark.timeout(600)]

TICKS = "i=0; while ! [ -e {end} ]; do i=$((i+1)); echo tick $i; sleep 0.1; done; exit {code}"
RUN = ("run", "--on", "gpu1", "--no-code", "--disk-min-free", "0")
MACHINE = "HOLDFAST_MACHINE_ID=the-box-of-the-tests\n"
OTHER_BOOT = "11111111-2222-3333-4444-555555555555\n"


class Box:
    """An sshd of this file's own: its file systems are mounted, filled and taken away."""

    def __init__(self, sshd: Sshd) -> None:
        self.sshd, self.number = sshd, sshd.users["box"]
        self.volume = sshd.root / "volume"
        self.volume.mkdir()
        os.chown(self.volume, self.number, self.number)
        ssh = sshd.home("box") / ".ssh"
        ssh.mkdir(mode=0o755)
        (ssh / "environment").write_text(MACHINE)

    def inside(self, *command: str | Path) -> str:
        """Run a command as root in the namespace of the sshd."""
        done = subprocess.run(
            ["nsenter", "-t", str(self.sshd.pid), "-m", *command], capture_output=True, text=True, check=False
        )
        assert not done.returncode, done.stderr
        return done.stdout

    def mount(self, where: Path, **options: object) -> None:
        """Put an empty file system there, which is the account's."""
        given = {"mode": "0700", "uid": self.number, "gid": self.number, **options}
        self.inside("mount", "-t", "tmpfs", "-o", ",".join(f"{k}={v}" for k, v in given.items()), "none", where)

    def unmount(self, where: Path) -> None:
        """Take it away, whoever uses it."""
        self.inside("umount", "-l", where)

    def read(self, path: Path) -> bytes:
        """A file there."""
        done = subprocess.run(
            ["nsenter", "-t", str(self.sshd.pid), "-m", "cat", path], capture_output=True, check=False
        )
        return done.stdout

    def touch(self, path: Path) -> None:
        """Make a file there, of the account."""
        self.inside("install", "-o", str(self.number), "-m", "0600", "/dev/null", path)


@pytest.fixture(scope="module")
def own_box() -> Iterator[Box]:
    skip_without_rights()
    with Sshd.started(options="PermitUserEnvironment yes") as sshd:
        yield Box(sshd)


@pytest.fixture
def box(own_box: Box, isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """The box as the place gpu1 of this test's desk, with its runs in the volume."""
    assert isolated_environment
    monkeypatch.setenv("HOLDFAST_SSH", str(own_box.sshd.program))
    add_place("gpu1", root=str(own_box.volume), host=own_box.sshd.alias("box"))
    yield own_box
    end_masters()
    for pid in own_box.sshd.processes("box"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    wait_until(lambda: not own_box.sshd.processes("box"), what="nothing of the account is left")
    with contextlib.suppress(AssertionError):  # of a test that failed
        while True:
            own_box.unmount(own_box.volume)
    for path in own_box.volume.iterdir():
        subprocess.run(["chmod", "-R", "u+w", path], check=True)
        shutil.rmtree(path)


@contextlib.contextmanager
def mounted(box: Box, where: Path, **options: object) -> Iterator[None]:
    """A file system until the end of the block."""
    box.mount(where, **options)
    try:
        yield
    finally:
        box.unmount(where)


def test_a_disk_that_fills_up_ends_no_run_and_an_order_says_so_and_leaves_nothing(
    holdfast: Command, box: Box, tmp_path: Path
) -> None:
    end = box.sshd.home("box") / "end-full"
    with mounted(box, box.volume, size="40m"):
        followed = Follower(tmp_path, *RUN, "--name", "ticks", "--", "sh", "-c", TICKS.format(end=end, code=7))
        try:
            wait_until(lambda: followed.out.count(b"\n") > 5, LONG_S, what=f"ticks {followed.err}")
            box.inside("sh", "-c", f"cat /dev/zero > {box.volume}/fill 2>/dev/null || :")
            before = set(box.inside("ls", "-A", box.volume).split())
            order = (*RUN, "-d", "--name", "second", "--", "true")
            refused = holdfast(*order, timeout_s=LONG_S)
            assert (refused.code, "No space left on device" in refused.err, "see df" in refused.err) == (74, True, True)
            assert set(box.inside("ls", "-A", box.volume).split()) == before
            listed = holdfast("ls", "--on", "gpu1", timeout_s=LONG_S)
            assert (listed.code, "-ticks-" in listed.out, " running " in listed.out) == (0, True, True), listed
            assert holdfast("show", "gpu1:ticks", timeout_s=LONG_S).code == 0
            box.inside("rm", box.volume / "fill")
            again = holdfast(*order, timeout_s=LONG_S)
            assert (again.code, "going on with gpu1:" in again.err) == (0, True), again
            box.touch(end)
            assert followed.end(LONG_S) == 7, followed.err
            (log,) = box.inside("sh", "-c", f"ls {box.volume}/*-ticks-*/attempts/1/output.log").split()
            assert followed.out == box.read(Path(log))
        finally:
            followed.kill()
            box.inside("rm", "-f", end)


def test_inodes_that_are_used_up_are_not_called_a_full_disk(holdfast: Command, box: Box) -> None:
    with mounted(box, box.volume, size="60m", nr_inodes=4000):
        assert holdfast("place", "probe", "gpu1", timeout_s=LONG_S).code == 0
        fill = 'i=0; while : > "$0/n$i"; do i=$((i+1)); done'
        box.inside("sh", "-c", f"mkdir {box.volume}/many; sh -c '{fill}' {box.volume}/many 2>/dev/null || :")
        refused = holdfast(*RUN, "-d", "--", "true", timeout_s=LONG_S)
        assert (refused.code, "no inodes are left" in refused.err, "see df -i" in refused.err) == (74, True, True)


def test_a_runs_root_that_is_not_mounted_is_no_new_one(holdfast: Command, box: Box) -> None:
    end = box.sshd.home("box") / "end-vanished"
    job = ("sh", "-c", TICKS.format(end=end, code=3))
    box.mount(box.volume)
    begun = holdfast(*RUN, "-d", "--name", "kept", "--json", "--", *job, timeout_s=LONG_S).json()
    run_id = str(begun["run_id"])
    assert " running" in holdfast("ls", "--on", "gpu1", timeout_s=LONG_S).out
    supervisor = [pid for pid, line in box.sshd.processes("box").items() if "supervise" in line]
    # The processes of the run keep it: only its name is gone, as on a mount point that somebody else sees empty.
    box.inside("mount", "--bind", box.volume, "/mnt")
    box.unmount(box.volume)
    try:
        for words in (["show", "gpu1:kept"], ["stop", "gpu1:kept"], [*RUN, "-d", "--", "true"], ["wait", "gpu1:kept"]):
            done = holdfast(*words, timeout_s=LONG_S)
            assert (done.code, "is not mounted" in done.err, run_id in done.err) == (74, True, True), done
        assert "holdfast place probe gpu1" in done.err
        assert list(box.volume.iterdir()) == []
        listed = holdfast("ls", "--on", "gpu1", timeout_s=LONG_S)
        assert listed.code == 69, listed
        assert f"{run_id} running" in " ".join(listed.out.split()), listed
    finally:
        box.inside("mount", "--bind", "/mnt", box.volume)
        box.unmount(Path("/mnt"))
    assert supervisor == [pid for pid, line in box.sshd.processes("box").items() if "supervise" in line]
    assert holdfast("show", "gpu1:kept", timeout_s=LONG_S).code == 0
    box.touch(end)
    assert holdfast("wait", "gpu1:kept", timeout_s=LONG_S).code == 3
    assert holdfast("ls", "--on", "gpu1", timeout_s=LONG_S).code == 0
    box.inside("rm", end)
    box.unmount(box.volume)
    # All that was known has ended: nothing is lost by a new beginning.
    assert holdfast("ls", "--on", "gpu1", timeout_s=LONG_S).code == 0
    assert holdfast(*RUN, "-d", "--", "true", timeout_s=LONG_S).code == 0


def test_a_runs_root_that_was_emptied_on_purpose_is_taken_after_a_probe(holdfast: Command, box: Box) -> None:
    box.mount(box.volume)
    assert holdfast(*RUN, "-d", "--", "sleep", "1000", timeout_s=LONG_S).code == 0
    box.unmount(box.volume)
    assert holdfast(*RUN, "-d", "--", "true", timeout_s=LONG_S).code == 74
    assert holdfast("place", "probe", "gpu1", timeout_s=LONG_S).code == 0
    assert holdfast(*RUN, "-d", "--", "true", timeout_s=LONG_S).code == 0


def test_a_home_that_is_read_only_or_missing_is_in_the_way_of_secrets_alone(holdfast: Command, box: Box) -> None:
    home = box.sshd.home("box")
    box.inside("mount", "--bind", home, home)
    box.inside("mount", "-o", "remount,ro,bind", home)
    try:
        for name in ("readonly", "missing"):
            done = holdfast(*RUN, "--", "sh", "-c", "echo here; exit 4", timeout_s=LONG_S)
            assert (done.code, done.out) == (4, "here\n"), (name, done)
            pushed = holdfast("secret", "push", "gpu1", "TOKEN", stdin="s3cret", timeout_s=LONG_S)
            assert (pushed.code, "home directory made writable" in pushed.err) == (74, True), (name, pushed)
            if name == "readonly":
                box.unmount(home)
                home.rename(home.with_name("gone"))
    finally:
        if (gone := home.with_name("gone")).exists():
            gone.rename(home)
        else:
            box.unmount(home)


@pytest.mark.requirement("XPORT-10")
def test_a_host_key_that_changes_while_a_run_is_followed_ends_the_following_and_not_the_run(
    holdfast: Command, tmp_path: Path, isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isolated_environment
    skip_without_rights()
    with Sshd.started() as sshd:
        monkeypatch.setenv("HOLDFAST_SSH", str(sshd.program))
        add_place("gpu1", root="~/runs", host=sshd.alias("box"))
        job = ("sh", "-c", TICKS.format(end="~/end", code=0))
        assert holdfast(*RUN, "-d", "--name", "ticks", "--", *job, timeout_s=LONG_S).code == 0
        followers = [Follower(tmp_path, *words) for words in (("attach", "gpu1:ticks"), ("wait", "gpu1:ticks"))]
        try:
            wait_until(lambda: followers[0].out.count(b"\n") > 5, LONG_S, what="ticks")
            wait_until(lambda: {"attach", "wait"} <= {words[0] for words in sshd.calls("box")}, LONG_S, what="both")
            sshd.new_host_key()
            sshd.cut()
            assert [follower.end(LONG_S) for follower in followers] == [77, 77]
            for follower in followers:
                assert "host key" in follower.err
                assert "holdfast place trust gpu1" in follower.err
                assert "goes on" in follower.err
            assert [line for line in sshd.processes("box").values() if "supervise" in line]
            trusted = holdfast("place", "trust", "gpu1", "--yes-fingerprint", sshd.fingerprint(), timeout_s=LONG_S)
            assert trusted.code == 0, trusted
            assert " running" in holdfast("ls", "--on", "gpu1", timeout_s=LONG_S).out
        finally:
            for follower in followers:
                follower.kill()
            end_masters()


def test_two_desks_order_at_once_and_one_id_is_one_run(holdfast: Command, box: Box, tmp_path: Path) -> None:
    desks = [{"XDG_STATE_HOME": str(tmp_path / name)} for name in ("one", "two")]
    for desk in desks:
        os.mkdir(desk["XDG_STATE_HOME"], 0o700)
    run_id = "20261122-104501-same-3fa2"

    def order(number: int, *words: str) -> Ended:
        return holdfast(*RUN, "-d", "--prove", "0", "--json", *words, env=desks[number % 2], timeout_s=LONG_S)

    with ThreadPoolExecutor(4) as pool:  # neither has ever met the box: both bring the bundle
        begun = [done.json() for done in pool.map(lambda n: order(n, "--", "sleep", "1000"), range(2))]
        assert len({each["run_id"] for each in begun}) == 2
        job = ("--run-id", run_id, "--", "sleep", "1000")
        same = list(pool.map(lambda n: order(n, *job), range(4)))
    answered = [done.json() for done in same]
    assert [done.code for done in same] == [0] * 4, same
    assert sorted(bool(each["fresh"]) for each in answered) == [False, False, False, True]
    other = order(1, "--run-id", run_id, "--", "sleep", "999")
    assert (other.code, other.json()["error"]["code"]) == (73, "taken")
    for desk in desks:
        assert holdfast("reconcile", "gpu1", env=desk, timeout_s=LONG_S).code == 0
        runs = holdfast("ls", "--on", "gpu1", "--json", env=desk, timeout_s=LONG_S).json()["runs"]
        assert {run["run_id"] for run in runs} == {run_id, *(each["run_id"] for each in begun)}
    assert sum("sleep 1000" in line for line in box.sshd.processes("box").values()) == 3


@pytest.mark.requirement("BSSH-05")
def test_BSSH_05_a_box_that_is_started_anew_ends_a_wait_and_a_following_with_lost(
    holdfast: Command, box: Box, tmp_path: Path
) -> None:
    """Every process of the box is killed, and its kernel has another boot id from then on; the files stay."""
    for name in ("waited", "followed"):
        job = (*RUN, "-d", "--name", name, "--", "sh", "-c", "echo up; exec sleep 1000")
        assert holdfast(*job, timeout_s=LONG_S).code == 0
    commands = (("wait", "gpu1:waited"), ("attach", "gpu1:followed"))
    followers = [Follower(tmp_path, *words) for words in commands]
    try:
        wait_until(lambda: b"up" in followers[1].out, LONG_S, what="the output")
        wait_until(lambda: {"attach", "wait"} <= {words[0] for words in box.sshd.calls("box")}, LONG_S, what="both")
        box.sshd.restart()
        boot = tmp_path / "boot_id"
        boot.write_text(OTHER_BOOT)
        box.inside("mount", "--bind", boot, "/proc/sys/kernel/random/boot_id")
        assert [follower.end(LONG_S) for follower in followers] == [71, 71], [each.err for each in followers]
    finally:
        for follower in followers:
            follower.kill()
    listed = holdfast("ls", "--on", "gpu1", timeout_s=LONG_S)
    assert listed.out.count(" lost") == 2, listed
    assert "boot" in holdfast("show", "gpu1:waited", timeout_s=LONG_S).out


SHIFTED_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long shift(void) { const char *s = getenv("SHIFTED_BY"); return s ? atol(s) : 0; }
int clock_gettime(clockid_t id, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, at);
    if (!code && id == CLOCK_REALTIME) at->tv_sec += shift();
    return code;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""
"""The desk's clock and not the box's is shifted: what the kernel writes as times of files agrees with the box's own."""


@pytest.mark.parametrize("ahead_s", [3600, -3600])
def test_a_clock_that_is_an_hour_off_is_said_and_bends_nothing(
    holdfast: Command, box: Box, tmp_path: Path, ahead_s: int
) -> None:
    if shutil.which("cc") is None:
        pytest.skip("a C compiler makes the clock")
    (tmp_path / "clock.c").write_text(SHIFTED_CLOCK)
    library = tmp_path / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "clock.c", "-ldl"], check=True)
    shifted = {"LD_PRELOAD": str(library), "SHIFTED_BY": str(-ahead_s)}
    end = box.sshd.home("box") / "end-clock"
    job = ("sh", "-c", TICKS.format(end=end, code=5))
    probed = holdfast("place", "probe", "gpu1", env=shifted, timeout_s=LONG_S)
    way = "ahead of" if ahead_s > 0 else "behind"
    assert f"its clock is 3600 s {way} this machine's" in probed.out + probed.err, probed
    begun = holdfast(*RUN, "-d", "--name", "ticks", "--timeout", "10m", "--", *job, env=shifted, timeout_s=LONG_S)
    assert begun.code == 0, begun
    listed = holdfast("ls", "--on", "gpu1", "--json", env=shifted, timeout_s=LONG_S).json()
    (run,) = listed["runs"]
    assert (run["condition"], run["fresh"], 0 <= run["elapsed_s"] < 600) == ("running", True, True), run
    seen = holdfast("ls", "--on", "gpu1", env=shifted, timeout_s=LONG_S)
    assert "59m" not in seen.out + seen.err
    assert "1h" not in seen.out + seen.err
    waited = holdfast("wait", "--timeout", "1s", "gpu1:ticks", env=shifted, timeout_s=LONG_S)
    assert waited.code == 124, waited
    followed = Follower(tmp_path, "attach", "gpu1:ticks", env=shifted)
    try:
        wait_until(lambda: followed.out.count(b"\n") > 5, LONG_S, what="ticks")
        box.touch(end)
        assert followed.end(LONG_S) == 5, followed.err
    finally:
        followed.kill()
        box.inside("rm", "-f", end)
    assert holdfast("wait", "gpu1:ticks", env=shifted, timeout_s=LONG_S).code == 5
    ended = holdfast("ls", "--on", "gpu1", "--json", env=shifted, timeout_s=LONG_S).json()["runs"][0]
    assert ended["condition"].startswith("failed"), ended


CANARY = "c4n4ry-51-d0-n0t-sh0w"
FORMS = Canary(CANARY)


@pytest.mark.requirement("XPORT-11", "XPORT-13")
@pytest.mark.gotcha("U34")
def test_XPORT_11_a_canary_is_in_its_file_and_in_the_job_and_in_no_argument_log_or_record(
    holdfast: Command, box: Box, tmp_path: Path, isolated_environment: dict[str, str]
) -> None:
    """Every exec of the desk's commands, of ssh, of the sshd and of all that it starts is seen by strace."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed; `make test` installs what scripts/system-packages.txt names")
    trace = tmp_path / "execs"
    tracer = subprocess.Popen(
        [*("strace", "-f", "-qq", "-s", "100000", "-e", "trace=execve", "-o", trace, "-p", str(box.sshd.pid))],
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: "TracerPid:\t0" not in Path(f"/proc/{box.sshd.pid}/status").read_text(), what="strace")

        def say(*words: str, stdin: str | None = None) -> Ended:
            # -D: the shared connection that ssh leaves behind is traced, too, and is not waited for.
            log, out, err = (tmp_path / f"{len(list(tmp_path.iterdir()))}-{kind}" for kind in ("exec", "out", "err"))
            command = ["strace", "-D", "-f", "-qq", "-s", "100000", "-e", "trace=execve", "-o", str(log)]
            with out.open("w") as first, err.open("w") as second:
                done = subprocess.run(
                    [*command, *ENTRY, *words],
                    input=stdin or "",
                    stdout=first,
                    stderr=second,
                    text=True,
                    timeout=LONG_S,
                    check=False,
                    cwd=tmp_path,
                )
            assert "execve" in log.read_text(errors="replace")
            return Ended(done.returncode, out.read_text(), err.read_text())

        assert say("secret", "push", "gpu1", "HF_TOKEN", stdin=CANARY).code == 0
        job = 'test "$HF_TOKEN" = "$(cat ~/.config/holdfast/secrets/HF_TOKEN)" && echo same; sleep 2; exit 3'
        ran = say(*RUN, "--secret", "HF_TOKEN", "--name", "told", "--", "sh", "-c", job)
        assert (ran.code, ran.out) == (3, "same\n"), ran
        assert say("restart", "gpu1:told", "-f").code == 3
        for words in (
            ("show", "gpu1:told", "--env", "--events", "--json"),
            ("diagnose", "gpu1:told", "--deep"),
            ("diagnose", "gpu1:told", "--bundle", str(tmp_path / "bundle.tgz")),
            ("handbook", "gpu1:told"),
            ("files", "gpu1:told"),
            ("exec", "gpu1:told", "--", "env"),
            ("secret", "ls", "gpu1"),
            ("logs", "gpu1:told", "--supervisor"),
            ("ls", "--json"),
            ("place", "show", "gpu1"),
        ):
            assert say(*words).code == 0, words
    finally:
        tracer.terminate()
        tracer.wait()
    assert "hf.py" in trace.read_text(errors="replace")  # it has seen what is started there
    if (tmp_path / "bundle.tgz").exists():
        shutil.unpack_archive(tmp_path / "bundle.tgz", tmp_path / "unpacked", format="gztar")
    places = [tmp_path, box.volume, box.sshd.home("box"), *map(Path, isolated_environment.values())]
    holding = {str(path) for place in places for path in place.rglob("*") if path.is_file() and _has(path)}
    assert holding == {str(box.sshd.home("box") / ".config/holdfast/secrets/HF_TOKEN")}
    assert not FORMS.is_in(box.sshd.log.read_bytes())


def _has(path: Path) -> bool:
    try:
        return FORMS.is_in(path.read_bytes())
    except OSError:
        return False
