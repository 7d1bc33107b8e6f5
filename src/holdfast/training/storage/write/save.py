"""The trainer's side of a save: copy the state, hand it to the writer, learn how it went.

One save is under way at a time; the loop pauses for the copy. Where there is no memory for a copy, or no anonymous
shared file, the trainer writes by itself and waits. A writer that dies takes its save with it: that is seen at the next
step, reported, and the next save starts another one.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast import __version__
from holdfast.model.record import asdict
from holdfast.training.errors import SaveFailed
from holdfast.training.storage import layout, tree
from holdfast.training.storage.checkpoints import Retention

from . import files, snapshot, writer

if TYPE_CHECKING:
    import subprocess

LEAVE_S = 60.0
"""How long the end of a run waits for a mirror after the last checkpoint is durable; the writer goes on by itself."""


MOST_DEATHS = 3
"""After so many writers that died in a save, with none that came through, the trainer writes by itself."""
LONGEST_WORDS = 4096
"""Bytes of a dead writer's last words that are repeated."""


class Save:
    """One save: `result()` waits until it is durable, `done` says whether it is over."""

    def __init__(self, saver: Saver | None, step: int) -> None:
        """A save that has begun."""
        self.step = step
        self.paused_s = 0.0
        self.began = time.monotonic()
        self._saver = saver
        self._result: writer.SaveResult | None = None
        self._real: Save | None = None

    def stand_for(self, save: Save) -> None:
        """This one was asked for before its step was complete; `save` is what came of it."""
        self._real = save

    @property
    def done(self) -> bool:
        """Whether it is durable or has failed; asks the writer."""
        if self._real is not None:
            return self._real.done
        if self._result is None and self._saver is not None:
            self._saver.poll()
        return self._result is not None

    def result(self, timeout: float | None = None) -> str:
        """The path of the durable checkpoint.

        Raises:
            SaveFailed: it did not become durable; earlier checkpoints are untouched.
            TimeoutError: not within `timeout` seconds; or its step is not complete, so that it has not begun.
        """
        if self._real is not None:
            return self._real.result(timeout)
        if self._saver is None and self._result is None:
            raise TimeoutError(f"the checkpoint of step {self.step} begins when its step is complete")
        if self._result is None and self._saver is not None:
            self._saver.wait(timeout)
        if self._result is None:
            raise TimeoutError(f"the checkpoint of step {self.step} is not durable after {timeout or 0.0:.1f} s")
        if not self._result.ok:
            raise SaveFailed(
                f"the checkpoint of step {self.step} was not saved: {self._result.message}",
                "the earlier checkpoints are untouched; make room or repair the disk, the next interval tries again",
            )
        return self._result.path

    def settle(self, result: writer.SaveResult) -> None:
        """Note how it went."""
        self._result = result

    @property
    def outcome(self) -> writer.SaveResult | None:
        """How it went, None while it is under way."""
        return self._result if self._real is None else self._real.outcome


class Saver:
    """Saves states into one directory."""

    def __init__(  # noqa: PLR0913 - all but two by name, each with a usual value
        self,
        directory: str,
        keep: Retention,
        *,
        token: str = "",
        rank: int = 0,
        world: int = 1,
        mirror: str | None = None,
        asynchronous: bool = True,
        report: Callable[[Save, writer.SaveResult], None] | None = None,
        lock_fd: int | None = None,
    ) -> None:
        """Nothing is started before the first save. `report` hears of every result, the mirror's too."""
        self.directory = os.path.abspath(directory)
        self.mirror = os.path.abspath(mirror) if mirror else None
        self._keep, self._rank, self._world = keep, rank, world
        self._token = token or os.urandom(4).hex()
        self._asynchronous = asynchronous and hasattr(os, "memfd_create")
        self._report = report or (lambda _save, _result: None)
        self._lock_fd = lock_fd
        self._lock: tuple[int, int] | None = None
        if lock_fd is not None:
            status = os.fstat(lock_fd)
            self._lock = (status.st_dev, status.st_ino)
        self._snapshot: snapshot.StateSnapshot | None = None
        self._layouts = snapshot.Layouts()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._answers = b""
        self._words_fd = -1
        self._current: Save | None = None
        self._step, self._count = -1, 0
        self._deaths = 0
        self._mirrors_due: list[int] = []
        self.why_inline = "" if self._asynchronous else "it was asked for" if not asynchronous else "no memfd here"

    @property
    def busy(self) -> Save | None:
        """The save that is under way, as far as was heard."""
        return self._current

    def prepare(self, states: Mapping[str, Any]) -> None:
        """See that `states` can be saved, start the writer, and have memory for their copy ready.

        Raises:
            CannotSave: a value has no plain form.
        """
        planned = self._plan(states)[0]
        nbytes = snapshot.bytes_needed(planned)
        if self._asynchronous and self._has_memory(nbytes):
            with contextlib.suppress(OSError, MemoryError):
                self._open_snapshot().reserve(nbytes, ahead=True)
                self._start_writer()

    def save(self, step: int, states: Mapping[str, Any], record: dict[str, Any]) -> Save:
        """Copy `states` and have them made durable; `record` are the fields of a `CommitRecord` without step and files.

        Raises:
            CannotSave: a value has no plain form; nothing was written.
        """
        if self._current is not None:
            self.wait(None)
        with _without_collections():
            return self._save(step, states, record)

    def _save(self, step: int, states: Mapping[str, Any], record: dict[str, Any]) -> Save:
        save = Save(self, step)
        planned, record = self._plan(states)[0], dict(record)
        # Counted for each step: a rank that saved once alone meets the others again at the next step.
        self._count = self._count + 1 if self._step == step else 0
        self._step = step
        job = writer.SaveJob(
            directory=self.directory,
            token=f"{self._token}{self._count & 0xFFFF:04x}",
            step=step,
            files=tuple((file.path, file.offset, file.nbytes) for file in planned),
            record=record,
            rank=self._rank,
            world=self._world,
            keep=asdict(self._keep),
            mirror=self.mirror,
            lock=self._lock,
        )
        if not (self._asynchronous and self._deaths < MOST_DEATHS and self._hand_over(job, planned, save)):
            self._write_here(job, planned, save)
        return save

    def _plan(self, states: Mapping[str, Any]) -> tuple[list[snapshot.PlannedFile], bytes]:
        documents, found, described = {}, {}, {}
        for name, state in states.items():
            documents[name], found[name], described[name] = tree.flatten_described(state, name)
        text = json.dumps(documents, separators=(",", ":")).encode()
        prefix = layout.rank_prefix(self._rank)
        return snapshot.plan_files(prefix, found, text, described, self._layouts), text

    def _has_memory(self, nbytes: int) -> bool:
        have = self._snapshot.size if self._snapshot is not None else 0
        if nbytes <= have:
            return True
        free = snapshot.memory_free()
        if free is not None and free < (nbytes - have) * snapshot.HEADROOM:
            self.why_inline = f"{free / 1e6:,.0f} MB of memory are free, a copy of the state takes {nbytes / 1e6:,.0f}"
            return False
        self.why_inline = ""
        return True

    def _open_snapshot(self) -> snapshot.StateSnapshot:
        if self._snapshot is None:
            self._snapshot = snapshot.StateSnapshot()
        return self._snapshot

    def _hand_over(self, job: writer.SaveJob, planned: list[snapshot.PlannedFile], save: Save) -> bool:
        """Copy and send; False when this save has to be written here."""
        if not self._has_memory(snapshot.bytes_needed(planned)):
            return False
        try:
            buffer = self._open_snapshot()
            buffer.fill(planned)
            self._start_writer()
        except (OSError, MemoryError) as error:
            self.why_inline = f"no copy could be made ({error})"
            return False
        line = json.dumps(asdict(job)).encode() + b"\n"
        for again in (False, True):
            assert self._channel is not None
            try:
                self._channel.setblocking(True)
                self._channel.sendall(line)
            except OSError:
                # It died while it was idle: another one takes this save.
                self._bury_writer()
                if again or not self._try_start_writer():
                    return False
                continue
            break
        self._current = save
        if self.mirror is not None and job.rank == 0:
            self._mirrors_due.append(job.step)
        save.paused_s = time.monotonic() - save.began
        return True

    def _write_here(self, job: writer.SaveJob, planned: list[snapshot.PlannedFile], save: Save) -> None:
        sources = [files.FileSource(file.path, file.nbytes, pieces=file.pieces) for file in planned]
        hidden: list[str] = []
        result = writer.perform_save(job, sources, hidden)
        writer.remove(hidden)
        save.paused_s = time.monotonic() - save.began
        self._settle(save, result)
        mirrored = writer.copy_to_mirror(job, result.path) if result.ok else None
        if mirrored is not None:
            self._report(save, mirrored)

    def _try_start_writer(self) -> bool:
        try:
            self._start_writer()
        except OSError as error:
            self.why_inline = f"no writer process could be started ({error})"
            return False
        return True

    def _start_writer(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        if not sys.executable:
            raise OSError(errno.ENOENT, "this Python does not know its own executable (sys.executable)")
        import subprocess

        self._bury_writer()
        ours, theirs = socket.socketpair()
        # What it has to say on its way out, without holding the trainer's own output open.
        self._close_words()
        self._words_fd = os.memfd_create("holdfast-writer-words", os.MFD_CLOEXEC)
        # A signal to the whole group must not end it before it has said that it ignores them: it inherits the mask.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, writer.ignored_signals())
        try:
            snapshot_fd = self._open_snapshot().fd
            passed = [theirs.fileno(), snapshot_fd] + ([] if self._lock_fd is None else [self._lock_fd])
            self._process = subprocess.Popen(
                writer.command(theirs.fileno(), snapshot_fd),
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._words_fd,
                cwd="/",
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._channel, self._answers = ours, b""

    def _bury_writer(self) -> str:
        """Take leave of a dead writer; how it died, in words."""
        words = "the writer process is gone"
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            code = self._process.wait()
            words = f"the writer process died ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
            said = os.pread(self._words_fd, LONGEST_WORDS, max(0, os.fstat(self._words_fd).st_size - LONGEST_WORDS))
            if said.strip():
                words = f"{words}: {said.decode(errors='replace').strip()}"
            self._close_words()
        self._process, self._channel = None, None
        due, self._mirrors_due = self._mirrors_due, []
        for step in due:
            if self._current is None or self._current.step != step:
                lost = f"{words} before its copy was proven"
                self._report(Save(None, step), writer.SaveResult(step, ok=False, message=lost, mirror=True))
        return words

    def _close_words(self) -> None:
        if self._words_fd >= 0:
            os.close(self._words_fd)
            self._words_fd = -1

    def poll(self) -> None:
        """Hear what the writer has said so far, without waiting."""
        if self._channel is not None and (self._current is not None or self._mirrors_due):
            self._channel.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                self._hear()

    def wait(self, timeout: float | None) -> None:
        """Wait until nothing is under way, at most `timeout` seconds."""
        limit = None if timeout is None else time.monotonic() + timeout
        while self._current is not None and self._channel is not None:
            left = None if limit is None else limit - time.monotonic()
            if left is not None and left <= 0:
                return
            self._channel.settimeout(left)
            with contextlib.suppress(TimeoutError):
                self._hear()

    def _hear(self) -> None:
        assert self._channel is not None
        try:
            data = self._channel.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            words = self._bury_writer()
            if self._current is not None:
                self._deaths += 1
                if self._deaths == MOST_DEATHS:
                    self.why_inline = f"{words}, {MOST_DEATHS} times in a row"
                self._settle(self._current, writer.SaveResult(self._current.step, ok=False, message=words))
            return
        self._answers += data
        while b"\n" in self._answers:
            line, _, self._answers = self._answers.partition(b"\n")
            values = json.loads(line)
            result = writer.SaveResult(**{**values, "notes": tuple(values["notes"])})
            if result.mirror or not result.ok or os.path.dirname(result.path) == self.mirror:
                # What failed, or lies on the mirror itself, is not copied there.
                self._mirrors_due = [step for step in self._mirrors_due if step != result.step]
            if result.mirror:
                self._report(Save(None, result.step), result)
            elif self._current is not None:
                self._deaths = 0
                self._settle(self._current, result)

    def _settle(self, save: Save, result: writer.SaveResult) -> None:
        self._current = None
        save.settle(result)
        self._report(save, result)

    def close(self, timeout: float = LEAVE_S, *, patience: float | None = None) -> None:
        """Wait for what is under way (the mirror at most `timeout` seconds), then let the writer go.

        With `patience` seconds at most for all of it; a writer that needs longer ends by itself.
        """
        limit = time.monotonic() + (timeout if patience is None else min(timeout, patience))
        self.wait(patience)
        limit = limit if patience is not None else time.monotonic() + timeout
        while self._mirrors_due and self._current is None and self._channel is not None and time.monotonic() < limit:
            self._channel.settimeout(max(0.01, limit - time.monotonic()))
            with contextlib.suppress(TimeoutError):
                self._hear()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None and not self._mirrors_due and self._current is None:
            self._process.wait()
        elif self._process is not None:
            # It still writes; it finishes by itself. Python warns of a child that nobody waited for.
            self._process.returncode = 0
        self._process = None
        self._close_words()
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """A plan of 10,000 arrays is enough objects for full collections of garbage, each longer than the plan itself."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def versions() -> dict[str, str]:
    """What the state was made with."""
    found = {"holdfast": __version__, "python": ".".join(str(part) for part in sys.version_info[:3])}
    for name in ("torch", "numpy", "jax"):
        module = sys.modules.get(name)
        if module is not None:
            found[name] = str(getattr(module, "__version__", ""))
    return {**found, layout.INTERPRETER: sys.executable} if sys.executable else found
