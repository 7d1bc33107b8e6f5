"""What is believed of a container's record and of a pid: the first process by the kernel's word alone."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.view.page.container_view import find_inside, find_living
from holdfast.host.contain.tree import find_cgroups
from holdfast.host.container.members import has_living
from holdfast.host.container.recorded import prove_first, read_record
from holdfast.host.process.processes import identify, identify_self, is_alive
from holdfast.model import wire
from holdfast.model.container import CONTAINER_RECORD, INNER_ROOM, ROOM, ContainerRecord, RuntimeName
from holdfast.model.record import replace
from tests.agent.containers.stand_in import first_child
from tests.host.lease_support import Child
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.process, pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make namespaces")]
ID, OTHER = f"{os.getpid():064x}", f"{os.getpid():x}".ljust(64, "c")
"""Names of control groups: a second suite on this machine has others."""
NOBODY = 65534
INSIDE = f"""set -e
mount -t tmpfs none /run
mkdir {INNER_ROOM}
mount --bind "$0" {INNER_ROOM}
exec "$@"
"""
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
RECORD = ContainerRecord(RuntimeName.DOCKER, "/usr/bin/docker", ID, "holdfast-r.1", "x", f"sha256:{ID}")


@contextmanager
def first_process(
    room: Path,
    *,
    before: tuple[str, ...] = (),
    inside: tuple[str, ...] = (),
    unshare: tuple[str, ...] = (),
    script: str = INSIDE,
) -> Iterator[int]:
    """The first process of a container whose room is `room`: its pid here."""
    words = [*before, "unshare", *unshare, "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, str(room)]
    process = subprocess.Popen([*words, *inside, "sleep", "1000"])
    try:
        pid = first_child(process.pid)
        wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", what="it runs")
        yield pid
        with suppress(ProcessLookupError):
            # One that has changed its account outlives who has made it.
            os.kill(pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()


@contextmanager
def group_of(pid: int, name: str, *others: int) -> Iterator[str]:
    """A control group of that name, with the processes in it."""
    places = find_cgroups()
    top = (places.unified or places.v1[0]).mount
    path = f"{top}/{name}"
    try:
        os.mkdir(path)
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        for one in (pid, *others):
            Path(path, "cgroup.procs").write_text(str(one))
        yield path
    finally:
        for left in Path(path, "cgroup.procs").read_text().split():
            Path(top, "cgroup.procs").write_text(left)
        os.rmdir(path)


@pytest.fixture
def attempt() -> Iterator[Path]:
    """An attempt's directory that other accounts may look into."""
    with tempfile.TemporaryDirectory(prefix="hf-rec-") as name:
        place = Path(name)
        place.chmod(0o755)
        for room in (ROOM, "another"):
            (place / room).mkdir()
        yield place


def as_nobody(work: Callable[[], object]) -> Any:
    with Child(lambda line: line.send({"said": work()}), uid=NOBODY) as child:
        return child.receive()["said"]


def commit(place: Path, container: ContainerRecord) -> None:
    (place / CONTAINER_RECORD).write_bytes(wire.to_bytes(container))


@pytest.mark.requirement("PROC-08")
def test_a_pid_is_a_containers_first_process_by_what_it_sees_as_its_room(attempt: Path) -> None:
    room, another = str(attempt / ROOM), str(attempt / "another")
    with first_process(attempt / ROOM) as pid:
        assert prove_first(pid, ID, room) == identify(pid)
        assert prove_first(pid, ID, another) is None
        assert prove_first(os.getpid(), ID, room) is None
        assert prove_first(4_000_000, ID, room) is None
    wait_until(lambda: prove_first(pid, ID, room) is None, what="what was killed is gone")


@pytest.mark.requirement("PROC-08")
@pytest.mark.parametrize("rootless", [False, True])
def test_an_account_sees_that_of_what_runs_under_its_own_number_or_in_its_user_namespace(
    attempt: Path, rootless: bool
) -> None:
    room, another = str(attempt / ROOM), str(attempt / "another")
    how: dict[str, Any] = {"inside": AS_NOBODY}
    if rootless:
        how = {"before": AS_NOBODY, "unshare": ("--user", "--map-root-user")}
    with first_process(attempt / ROOM, **how) as pid:
        seen = as_nobody(lambda: [prove_first(pid, ID, place) is not None for place in (room, another)])
        assert seen == [True, False]


@pytest.mark.requirement("PROC-08")
def test_of_an_image_s_own_user_below_a_daemon_of_root_its_mount_table_or_its_control_group_tells(
    attempt: Path,
) -> None:
    def look(room: str) -> object:
        place, ids = str(attempt / room), (ID, OTHER, ID[-2:], "")
        return as_nobody(lambda: [prove_first(pid, one, place) is not None for one in ids])

    with first_process(attempt / ROOM) as pid:
        assert look(ROOM) == [True, True, True, True]
        assert look("another") == look("absent") == [False, False, False, False]
        with group_of(pid, f"docker-{ID}.scope"):
            assert look("absent") == [True, False, False, False]


@pytest.mark.requirement("PROC-08")
def test_an_absolute_link_in_an_image_hides_no_room(attempt: Path) -> None:
    linked = f"""set -e
mount -t tmpfs none /mnt
mkdir -p /mnt/var/run/holdfast /mnt/proc
mount --bind "$0" /mnt/var/run/holdfast
mkdir /mnt/usr
mount --rbind /usr /mnt/usr
for one in bin lib lib64; do [ ! -e /$one ] || ln -s usr/$one /mnt/$one; done
ln -s {attempt}/nowhere /mnt/run
exec chroot /mnt "$@"
"""
    with first_process(attempt / ROOM, script=linked) as pid:
        assert prove_first(pid, ID, str(attempt / ROOM)) == identify(pid)
        assert prove_first(pid, ID, str(attempt / "another")) is None


@pytest.mark.requirement("PROC-03", "PROC-08", "LEASE-09")
def test_what_the_job_writes_of_who_is_inside_makes_nobody_a_member(attempt: Path) -> None:
    """Its record lies in the run directory, which the image can write to."""
    place = str(attempt)
    with first_process(attempt / ROOM) as pid, first_process(attempt / "another") as strange:
        init, stranger = identify(pid), identify(strange)
        commit(attempt, replace(RECORD, init=init))
        assert read_record(place) == replace(RECORD, init=init)
        assert find_living(place) is not None
        for forged in (
            replace(RECORD, init=stranger, groups=("/sys/fs/cgroup/theirs",)),
            replace(RECORD, init=identify_self(), groups=("/sys/fs/cgroup/theirs",)),
            replace(RECORD, init=init, id="another-name"),
            replace(RECORD, init=init, groups=("/sys/fs/cgroup/theirs",)),
        ):
            commit(attempt, forged)
            assert read_record(place) == replace(forged, init=None, groups=())
            assert find_living(place) is None
            assert find_inside(place) == ((), ())
        # A group is the one in which its first process is, and names the same container.
        with group_of(pid, f"docker-{ID}.scope") as path:
            commit(attempt, replace(RECORD, init=init, groups=("/sys/fs/cgroup/theirs",)))
            found = read_record(place)
            assert found is not None
            assert (found.init, found.groups) == (init, (path,)), "and no group that is not named by its id"
            commit(attempt, replace(RECORD, id=OTHER, init=init, groups=(path,)))
            assert read_record(place) == replace(RECORD, id=OTHER)
    assert init is not None
    wait_until(lambda: not is_alive(init), what="it has ended")
    commit(attempt, replace(RECORD, init=init, groups=("/sys/fs/cgroup/theirs",)))
    assert read_record(place) == replace(RECORD, init=init), "with the first all have ended"
    commit(attempt, replace(RECORD, id="--latest", init=init))
    assert read_record(place) is None


@pytest.mark.requirement("LEASE-09", "PROC-16")
def test_who_waits_for_what_does_not_end_inside_is_still_its_first_process(attempt: Path) -> None:
    """A first process that was killed stays until all in its namespace have ended, and has no root any more."""
    freezer = find_cgroups().v1_place("freezer")
    if freezer is None:
        pytest.skip("only a v1 freezer holds a process through KILL")
    frozen = Path(freezer.mount, f"hf-held-{os.getpid()}")
    with first_process(attempt / ROOM, inside=("sh", "-c", 'sleep 1000 & exec "$@"', "sh")) as pid:
        child = first_child(pid)
        frozen.mkdir()
        try:
            (frozen / "cgroup.procs").write_text(str(child))
            (frozen / "freezer.state").write_text("FROZEN")
            wait_until(lambda: (frozen / "freezer.state").read_text() == "FROZEN\n", what="it is held")
            with group_of(pid, f"docker-{ID}.scope", child):
                commit(attempt, replace(RECORD, init=identify(pid), groups=("/x",)))
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda: not os.path.exists(f"/proc/{pid}/root"), what="its root is gone")
                found = read_record(str(attempt))
                assert found is not None
                assert (found.init, has_living(found)) == (identify(pid), True)
                assert prove_first(pid, OTHER, str(attempt / ROOM)) is None
        finally:
            (frozen / "freezer.state").write_text("THAWED")
            wait_until(lambda: not (frozen / "cgroup.procs").read_text(), what="it has ended")
            frozen.rmdir()
