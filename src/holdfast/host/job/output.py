"""The job's output on disk: its own bytes, bounded, and never a reason for the job to fail.

Up to the cap the file is exactly what the job wrote. Beyond it the head and the newest tail are kept and the middle
goes, with one line that says how much; the first Python traceback of the removed part is kept in ``first_error.txt``. A
disk that is full costs output, which is counted and said, never the job (OBS-11, OBS-13): in the log itself as soon as
there is room, and at once in ``output_lost.json``, which goes to memory where the disk takes no record either.

While it is cut the tail lies aside in a file of its own (where the disk has room for it), so that a writer that is
killed in between loses nothing: the next one finishes the cut.
"""

from __future__ import annotations

import errno
import os

from holdfast.host.clock import utc_now
from holdfast.host.files import fallback, files
from holdfast.model import wire
from holdfast.model.identity import LostOutput
from holdfast.model.record import replace

HEAD_SHARE = 4
"""The head keeps one part in this many of the cap, the tail half of it; the rest is slack between two cuts."""
TRACEBACK = b"Traceback (most recent call last)"
FIRST_ERROR_BYTES = 16 * 1024
PIECE_BYTES = 1 << 20
"""How much is searched at a time."""


def read_lost_output(run_id: str, attempt: int, directory: str) -> LostOutput | None:
    """What was lost of the output of an attempt, whose directory this is; None: nothing, as far as is known."""
    try:
        data = fallback.read(run_id, attempt, f"{directory}/{wire.OUTPUT_LOST}")
        return wire.from_bytes(LostOutput, data, wire.OUTPUT_LOST)
    except (OSError, wire.WireError):
        return None


class OutputFile:
    """An append-only log with one writer. Writes never raise for storage faults."""

    def __init__(self, path: str, max_bytes: int, attempt: tuple[str, int] | None = None) -> None:
        """Open (or go on with) the log at `path`, to be kept under `max_bytes`.

        `attempt` is the run id and the number of the attempt whose record says what is lost; None: none does.
        """
        self._path = path
        self._max_bytes = max(max_bytes, 64 * 1024)
        self._attempt = attempt
        self._dropped = 0
        self._error = ""
        self._lost = None if attempt is None else read_lost_output(*attempt, os.path.dirname(path))
        self._lost_bytes = self._told_bytes = 0 if self._lost is None else self._lost.lost_bytes
        self._cut_bytes = 0
        self._note_bytes = 0
        self._descriptor = self._open()

    @property
    def _aside(self) -> str:
        return f"{self._path}.tail"

    def _open(self) -> int | None:
        descriptor = self._open_log()
        if descriptor is not None:
            self._finish_cut(descriptor)
        return descriptor

    def _finish_cut(self, descriptor: int) -> None:
        """Put back the tail of a cut during which another writer was killed."""
        try:
            facts, _, kept = files.read_bytes(self._aside, limit=self._max_bytes + 64).partition(b"\n")
            head, self._cut_bytes = (int(word) for word in facts.split())
        except FileNotFoundError:
            return
        except (OSError, ValueError):
            files.remove_quietly(self._aside)
            return
        self._descriptor = descriptor
        self._rewrite(head, kept)

    def _open_log(self) -> int | None:
        try:
            return files.open_log(self._path)
        except OSError as error:
            self._error = error.strerror or str(error)
            return None

    def write(self, data: bytes) -> None:
        """Append the job's bytes; what the disk refuses is dropped and counted."""
        if self._descriptor is None:
            self._descriptor = self._open()
        if self._descriptor is None:
            self._drop(len(data))
            return
        if self._dropped:
            note = f"\n[holdfast: {self._dropped} bytes of output were lost here, the disk refused them]\n".encode()
            if not self._append_whole(note):
                self._drop(len(data))
                return
            self._dropped = 0
        self._drop(len(data) - self._append(data))
        try:
            if os.fstat(self._descriptor).st_size > self._max_bytes:
                self._cut()
        except OSError:
            # The file stays too long; the next write tries again.
            return

    def _drop(self, size: int) -> None:
        """Count what was lost, and say so in the record: at once, and then each time that it is twice as much."""
        self._dropped += size
        self._lost_bytes += size
        if self._lost_bytes and self._lost_bytes >= 2 * self._told_bytes:
            self._tell_lost()

    def _tell_lost(self, *, refused: bool = False) -> None:
        """Write down what was lost since the last time; `refused`: some of what was taken was lost after all."""
        if self._attempt is None or (self._lost_bytes == self._told_bytes and (not refused or self._lost is not None)):
            return
        if self._lost is None:
            self._lost = LostOutput(utc_now(), self._measure(), 0, self._error)
        self._told_bytes = self._lost_bytes
        self._lost = replace(self._lost, lost_bytes=self._lost_bytes)
        path = f"{os.path.dirname(self._path)}/{wire.OUTPUT_LOST}"
        # A disk that is slow to sync must not hold up the job.
        fallback.commit(*self._attempt, path, wire.to_bytes(self._lost), durable=False)

    def _measure(self) -> int:
        try:
            return 0 if self._descriptor is None else os.fstat(self._descriptor).st_size
        except OSError:
            return 0

    def _append(self, data: bytes) -> int:
        """Write as much as the disk takes, and say how much that was."""
        assert self._descriptor is not None
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, memoryview(data)[written:])
        except OSError as error:
            self._error = error.strerror or str(error)
            return written
        return written

    def _append_whole(self, data: bytes) -> bool:
        """Write all of it or nothing."""
        assert self._descriptor is not None
        try:
            size = os.fstat(self._descriptor).st_size
            written = self._append(data)
            if written < len(data):
                os.ftruncate(self._descriptor, size)
        except OSError:
            return False
        return written == len(data)

    def _cut(self) -> None:
        """Keep head and tail, in place: the descriptor stays, so nobody who follows the file loses it."""
        assert self._descriptor is not None
        size = os.fstat(self._descriptor).st_size
        head, tail = self._max_bytes // HEAD_SHARE, self._max_bytes // 2
        self._save_first_error(head, size - tail)
        kept = os.pread(self._descriptor, tail, size - tail)
        kept = kept[kept.find(b"\n") + 1 :] if b"\n" in kept[:4096] else kept
        # Our own line of the last cut stands between head and tail and is no output.
        self._cut_bytes += size - head - len(kept) - self._note_bytes
        try:
            files.commit(self._aside, f"{head} {self._cut_bytes}\n".encode() + kept, durable=False)
        except OSError:
            # No room to be careful; the cut itself makes some.
            files.remove_quietly(self._aside)
        self._rewrite(head, kept)

    def _rewrite(self, head: int, kept: bytes) -> None:
        """Head, the line that says how much is missing, and the tail."""
        assert self._descriptor is not None
        note = f"\n[holdfast: {self._cut_bytes} bytes were cut here, output is capped]\n".encode()
        os.ftruncate(self._descriptor, head)
        self._note_bytes = self._append(note)
        self._drop(len(kept) - self._append(kept))
        files.remove_quietly(self._aside)

    def _save_first_error(self, start: int, end: int) -> None:
        """Keep the first traceback of the part that is about to go; a disk that refuses it costs just that."""
        assert self._descriptor is not None
        target = os.path.join(os.path.dirname(self._path), "first_error.txt")
        if os.path.lexists(target):
            return
        position = start
        while position < end:
            # A traceback may begin in one piece and go on in the next, so pieces overlap.
            chunk = os.pread(self._descriptor, PIECE_BYTES + len(TRACEBACK) - 1, position)
            found = chunk.find(TRACEBACK)
            if found >= 0 and position + found < end:
                text = os.pread(self._descriptor, FIRST_ERROR_BYTES, position + found)
                try:
                    files.commit(target, text)
                except OSError:
                    return
                return
            position += PIECE_BYTES

    def close(self) -> None:
        """Say what was lost, if anything, make the rest durable, and close."""
        if self._dropped:
            self.write(b"")
        refused = False
        if self._descriptor is not None:
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                # A network's file system may say only now that it took nothing.
                self._error, refused = error.strerror or str(error), error.errno != errno.EINVAL
        self._tell_lost(refused=refused)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
