"""Who makes a checkpoint durable: a small process of its own beside the trainer, or the trainer itself.

The process imports nothing but this library, so it starts in about 20 ms and takes a few MiB; it maps the trainer's
snapshot and answers on a socket. It ignores the signals that a group gets when a job is asked to stop: the save that is
under way when everybody is signalled is the one that counts. It leaves when the trainer's end of the socket closes,
after the save that it has begun. Everything that a save does to a directory is in `perform_save`, also for a trainer
without such a process.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from holdfast.host.files.files import remove_tree
from holdfast.model import step_names
from holdfast.model.record import asdict, field, record
from holdfast.training.errors import CannotResume
from holdfast.training.storage import checkpoints, layout

from . import files as writing
from . import mirror as mirroring
from . import snapshot

ROSTER_WAIT_S = 600.0
"""How long rank 0 waits for the other ranks' files, and they for its commit."""
LOOK_S = 0.01
TRAINER_LOOK_MS = 1000
IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGXCPU")
ONCE_MORE = (*writing.ROOM, errno.EIO, errno.ESTALE)
"""After these a second try may end differently: room was made, other blocks, another handle."""


@record
class SaveJob:
    """One save as one rank sees it. `files` are (path, offset in the snapshot, bytes); `record` lacks the files."""

    directory: str
    token: str
    step: int
    files: tuple[tuple[str, int, int], ...]
    record: dict[str, Any]
    rank: int = 0
    world: int = 1
    keep: dict[str, Any] = field(default_factory=dict)
    mirror: str | None = None
    lock: tuple[int, int] | None = None
    """Device and inode of the run's lock: a directory that has another one, or is gone, is not the run's any more."""


@record
class SaveResult:
    """How it went. `path` and `seconds` until durable when `ok`; else `message`, and `errno` where there is one."""

    step: int
    ok: bool
    path: str = ""
    seconds: float = 0.0
    nbytes: int = 0
    message: str = ""
    errno: int = 0
    notes: tuple[str, ...] = ()
    mirror: bool = False
    """This is the answer about the mirror, which comes after the one about the checkpoint itself."""


def perform_save(job: SaveJob, sources: list[writing.FileSource], hidden: list[str]) -> SaveResult:
    """Make one checkpoint durable and prune what it replaces; an error of the file system becomes the result.

    What was pruned is out of sight, under names which `hidden` gets: the caller says how it went, then removes them.
    Where it cannot be written: free what may go and try once more; then the mirror instead; then give up, with the
    checkpoints that were there untouched.
    """
    began = time.monotonic()
    notes: list[str] = []
    keep = checkpoints.Retention(**job.keep)
    for directory in (job.directory, job.mirror):
        if directory is None:
            continue
        for last_try in (False, True):
            try:
                path = _attempt(job, directory, sources, notes)
                seconds = time.monotonic() - began
            except OSError as error:
                problem = error
                notes.append(_describe(directory, error))
                if last_try or not _may_try_again(job, error):
                    if job.rank == 0:
                        # The other ranks wait for it to be visible or gone.
                        _discard(_building(job, directory))
                    break
                if error.errno in writing.ROOM:
                    _make_room(job, directory, keep, notes)
                continue
            if job.rank == 0:
                _prune(directory, keep, notes, job.step, hidden)
            nbytes = sum(source.nbytes for source in sources)
            return SaveResult(job.step, ok=True, path=path, seconds=seconds, nbytes=nbytes, notes=tuple(notes))
        if job.world > 1:
            break  # the ranks cannot agree on another place in the middle of a save
    return SaveResult(
        job.step,
        ok=False,
        message=notes[-1],
        errno=problem.errno or 0,
        notes=tuple(notes[:-1]),
        seconds=time.monotonic() - began,
    )


def _may_try_again(job: SaveJob, error: OSError) -> bool:
    """Whether a second try may end differently; with several ranks only before the others were told of the failure."""
    alone = job.world == 1 or (job.rank == 0 and isinstance(error, writing.NoSpace))
    return alone and error.errno in ONCE_MORE


def _building(job: SaveJob, directory: str) -> str:
    return os.path.join(directory, layout.building_name(job.step, job.token))


def _discard(building: str) -> None:
    """Remove what was begun; out of the way first, because other ranks may still write there."""
    gone = f"{building}dead"
    with contextlib.suppress(OSError):
        os.rename(building, gone)
    for path in (gone, building):
        remove_tree(path)


def _describe(directory: str, error: OSError) -> str:
    where = error.filename if isinstance(error.filename, str) else directory
    return f"{where}: {error.strerror or error}"


def _attempt(job: SaveJob, directory: str, sources: list[writing.FileSource], notes: list[str]) -> str:
    if directory == job.mirror:
        mirroring.make_directory(directory, job.directory)
    elif job.lock is None:
        os.makedirs(directory, exist_ok=True)
    elif _identify_lock(directory) != tuple(job.lock):
        raise OSError(
            errno.ENOENT, "the run's directory is gone: removed, replaced, or not mounted any more", directory
        )
    final = os.path.join(directory, step_names.step_name(job.step))
    if job.rank == 0 and os.path.lexists(final):
        _settle_existing(final, job, notes)
    building = _building(job, directory)
    try:
        part = os.path.join(building, layout.rank_prefix(job.rank))
        if job.rank != 0:
            os.makedirs(part, exist_ok=True)  # a failure is said there
        writing.check_room(directory, sum(source.nbytes for source in sources), len(sources) + 2)
        os.makedirs(part, exist_ok=job.world > 1)
        files = writing.write_files(building, sources)
        if job.world > 1:
            return _meet_ranks(job, directory, building, files)
        path = writing.commit(directory, building, _complete(job, files))
        if directory == job.mirror:
            mirroring.prove(path)
        return path
    except OSError as error:
        if job.rank != 0 and error.errno != errno.ECANCELED:
            _say_failed(building, job.rank)
        elif job.rank == 0 and not isinstance(error, writing.NoSpace):
            _discard(building)
        raise


def _identify_lock(directory: str) -> tuple[int, int] | None:
    try:
        status = os.stat(os.path.join(directory, layout.LOCK), follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _say_failed(building: str, rank: int) -> None:
    """An empty file, which needs no room: rank 0 gives the save up as soon as it sees it."""
    with contextlib.suppress(OSError):
        os.close(os.open(os.path.join(building, f"failed-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))


def _settle_existing(final: str, job: SaveJob, notes: list[str]) -> None:
    """This step is there already: a wrong one is set aside, a sound one stays until the new one takes its name.

    Raises:
        OSError: it can neither be read nor be moved.
    """
    if not os.path.isdir(final):
        raise OSError(errno.EEXIST, "it is in the way and is no checkpoint; move it", final)
    try:
        verdict = checkpoints.verify(final)
    except CannotResume as error:
        raise OSError(errno.EEXIST, str(error), final) from None
    if verdict.ok:
        return
    if verdict.unreadable or checkpoints.set_aside(final, job.step) is None:
        raise OSError(errno.EEXIST, f"it exists and does not prove right ({verdict.problems[0]})", final)
    notes.append(f"{final} did not prove right ({verdict.problems[0]}) and was set aside")


def _complete(job: SaveJob, files: tuple[layout.FileEntry, ...]) -> layout.CommitRecord:
    return layout.CommitRecord(step=job.step, files=files, created=writing.now(), world=job.world, **job.record)


def _make_room(job: SaveJob, directory: str, keep: checkpoints.Retention, notes: list[str]) -> None:
    """Everything that is no longer needed: what killed saves left, then all but the newest, the best, the finite."""
    if job.rank != 0:
        return
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if layout.is_building(name) and not name.endswith(job.token):
                remove_tree(os.path.join(directory, name))
    least = checkpoints.Retention(1, min(keep.best, 1), keep.metric, keep.mode)
    _prune(directory, least, notes, job.step)


def _prune(
    directory: str, keep: checkpoints.Retention, notes: list[str], step: int, hidden: list[str] | None = None
) -> None:
    """Prune once `step` is durable (with `hidden`); before that, only what an earlier one that is right replaces."""
    try:
        proven = step if hidden is not None else checkpoints.newest_proven(directory, step)
        checkpoints.prune(directory, keep, proven, hidden)
    except (OSError, layout.LayoutError, CannotResume) as error:
        notes.append(f"old checkpoints were not pruned: {error}")


def _meet_ranks(job: SaveJob, directory: str, building: str, files: tuple[layout.FileEntry, ...]) -> str:
    """One unit out of every rank's files: each leaves a roster, rank 0 commits when all are there.

    Raises:
        OSError: another rank failed, or did not come in time.
    """
    roster = json.dumps([asdict(file) for file in files]).encode()
    writing.write_durably(os.path.join(building, f"roster-{job.rank}.part"), roster)
    os.rename(os.path.join(building, f"roster-{job.rank}.part"), os.path.join(building, f"roster-{job.rank}.json"))
    final = os.path.join(directory, step_names.step_name(job.step))
    if job.rank != 0:
        _wait(lambda: not os.path.isdir(building), f"rank 0 did not commit {final}")
        if not os.path.isdir(final):
            raise OSError(errno.ECANCELED, "another rank could not save its part", final)
        return final
    rosters = [os.path.join(building, f"roster-{rank}.json") for rank in range(job.world)]
    failed = [os.path.join(building, f"failed-{rank}") for rank in range(job.world)]

    def met() -> bool:
        return any(map(os.path.exists, failed)) or all(map(os.path.exists, rosters))

    _wait(met, f"not all {job.world} ranks saved their part")
    for rank, path in enumerate(failed):
        if os.path.exists(path):
            raise OSError(errno.ECANCELED, f"rank {rank} could not save its part", directory)
    entries: list[layout.FileEntry] = []
    for path in rosters:
        with open(path, "rb") as file:
            entries += [layout.FileEntry(**{**item, "chunks": tuple(item["chunks"])}) for item in json.load(file)]
        os.unlink(path)
    for entry in entries:
        # A roster may outlive its files: never commit what is not there.
        if os.lstat(os.path.join(building, entry.path)).st_size != entry.bytes:
            raise OSError(errno.EIO, f"{entry.path} is not what its rank wrote", directory)
    return writing.commit(directory, building, _complete(job, tuple(entries)))


def _wait(done: Callable[[], bool], words: str) -> None:
    limit = time.monotonic() + ROSTER_WAIT_S
    while not done():
        if time.monotonic() > limit:
            raise OSError(errno.ETIMEDOUT, f"{words} within {ROSTER_WAIT_S:.0f} s")
        time.sleep(LOOK_S)


def copy_to_mirror(job: SaveJob, path: str) -> SaveResult | None:
    """Copy a durable checkpoint to the mirror and read it back there; None without a mirror to copy to."""
    if job.mirror is None or job.rank != 0 or os.path.dirname(path) == os.path.abspath(job.mirror):
        return None
    began = time.monotonic()
    try:
        target = mirroring.copy(path, job.mirror, checkpoints.Retention(**job.keep))
    except (OSError, layout.LayoutError) as error:
        words = _describe(job.mirror, error) if isinstance(error, OSError) else str(error)
        return SaveResult(job.step, ok=False, message=words, mirror=True)
    return SaveResult(job.step, ok=True, path=target, seconds=time.monotonic() - began, mirror=True)


def main(channel_fd: int, snapshot_fd: int, trainer: int) -> None:
    """The process: one job at a time, until the trainer is gone. `trainer` is its process number."""
    numbers = ignored_signals()
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    _be_modest()
    channel = socket.socket(fileno=channel_fd)
    buffer = b""
    view: memoryview | None = None
    while data := _receive(channel, trainer):
        buffer += data
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            job = _parse_job(line)
            view = _map_again(snapshot_fd, view)
            sources = [
                writing.FileSource(path, nbytes, view[offset : offset + -(-nbytes // layout.PAGE) * layout.PAGE])
                for path, offset, nbytes in job.files
            ]
            hidden: list[str] = []
            result = perform_save(job, sources, hidden)
            untold = _answer(channel, result)
            remove(hidden)
            mirrored = copy_to_mirror(job, result.path) if result.ok else None
            if mirrored is not None and not untold:
                untold = _answer(channel, mirrored)
            if untold:
                sys.exit(untold)


def remove(hidden: list[str]) -> None:
    """Remove what `perform_save` has put out of sight; what is left of it goes at the next start."""
    for path in hidden:
        remove_tree(path)


def ignored_signals() -> list[signal.Signals]:
    """What the process ignores; the trainer blocks them while it starts it, so that none comes before it can."""
    return [getattr(signal, name) for name in IGNORED]


def _receive(channel: socket.socket, trainer: int) -> bytes:
    """What the trainer sends next; nothing when it is gone.

    Its end of the socket may live on in a process that it forked, so its own life is looked at as well.
    """
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    gone = False
    while not gone:
        gone = os.getppid() != trainer
        if poll.poll(0 if gone else TRAINER_LOOK_MS):
            return channel.recv(1 << 16)
    return b""


def _be_modest() -> None:
    """The training step comes first, also where there are few cores."""
    with contextlib.suppress(OSError):
        os.nice(5)
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write("holdfast-writer")


def _parse_job(line: bytes) -> SaveJob:
    values = json.loads(line)
    return SaveJob(**{**values, "files": tuple(tuple(item) for item in values["files"])})


def _map_again(descriptor: int, view: memoryview | None) -> memoryview:
    """The snapshot, mapped anew when the trainer has made it larger."""
    size = os.fstat(descriptor).st_size
    if view is None or len(view) != size:
        mapped = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
        if size >= snapshot.HUGE_FROM:
            snapshot.advise_huge(mapped)
        view = memoryview(mapped)
    return view


def _answer(channel: socket.socket, result: SaveResult) -> str:
    """Say how it went; why that could not be said, else an empty text.

    The trainer may be gone: the checkpoint is durable all the same. One that still waits hears that no answer comes.
    """
    try:
        channel.sendall(json.dumps(asdict(result)).encode() + b"\n")
    except OSError as error:
        channel.close()
        return f"its answer about step {result.step} could not be sent ({error.strerror or error})"
    return ""


def command(channel_fd: int, snapshot_fd: int) -> list[str]:
    """The argument vector that starts the process: no site packages, no environment, nothing but this library."""
    package = sys.modules["holdfast"].__file__
    assert package is not None
    root = os.path.dirname(os.path.dirname(os.path.abspath(package)))
    code = (
        "import sys; sys.path.append(sys.argv[1]); from holdfast.training.storage.write.writer import main; "
        "main(*map(int, sys.argv[2:]))"
    )
    return [sys.executable, "-I", "-S", "-c", code, root, str(channel_fd), str(snapshot_fd), str(os.getpid())]
