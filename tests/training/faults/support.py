"""Saving, damaging and looking at checkpoints in tests, without a run around them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from holdfast.host.files import files
from holdfast.model import step_names
from holdfast.training.storage import checkpoints, layout
from holdfast.training.storage.write.save import Saver

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest

    from holdfast.training.storage.write.writer import SaveResult

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PAYLOADS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "payloads")
INJECTED = (
    *("open", "pwrite", "write", "fsync", "rename", "mkdir", "statvfs", "ftruncate", "lstat", "listdir", "fstat"),
    *("scandir", "preadv", "read", "close"),
)
"""What a save asks of the file system through `os`; each call of each may fail."""


def payload(name: str, *arguments: object) -> list[str]:
    """The command of a payload; it finds the library and the tests by its environment, see `environ`."""
    return [sys.executable, os.path.join(PAYLOADS, f"{name}.py"), *map(str, arguments)]


def environ(**more: str) -> dict[str, str]:
    """The environment of a payload."""
    return {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}", "PYTHONUNBUFFERED": "1", **more}


def state_of(step: int, numbers: int = 64) -> dict[str, Any]:
    """A state that shows whose it is, in every array and in the document."""
    from array import array

    return {
        "model": {"w": array("d", [float(step)] * numbers), "b": array("i", [step] * 3), "step": step},
        "optimizer": {"m": array("f", [float(step)] * numbers), "lr": 0.1, "name": f"step {step}"},
    }


def save(
    directory: str | os.PathLike[str],
    step: int,
    states: dict[str, Any] | None = None,
    keep: checkpoints.Retention | None = None,
    *,
    mirror: str | None = None,
    **record: Any,
) -> SaveResult:
    """Save in this process; how it went."""
    saver = Saver(os.fspath(directory), keep or checkpoints.Retention(last=100), mirror=mirror, asynchronous=False)
    result = saver.save(step, state_of(step) if states is None else states, record).outcome
    saver.close()
    assert result is not None
    return result


def newest(directory: str | os.PathLike[str]) -> int | None:
    """The step of the checkpoint that would be continued."""
    found = checkpoints.find_newest(os.fspath(directory), whole=True).found
    return None if found is None else found.record.step


def steps(directory: str | os.PathLike[str]) -> list[int]:
    """The visible steps, the oldest first."""
    return sorted(step for name in os.listdir(directory) if (step := step_names.parse_step(name)) is not None)


def leftovers(directory: str | os.PathLike[str]) -> list[str]:
    """What a save builds in and must not leave."""
    return [name for name in os.listdir(directory) if name.startswith(".step")]


def whose(loaded: checkpoints.LoadedCheckpoint) -> set[Any]:
    """The steps that the parts of a state say they are from: more than one is a mix."""
    model, optimizer = loaded.states["model"], loaded.states["optimizer"]
    return {*model["w"], *model["b"], model["step"], *optimizer["m"], int(optimizer["name"].split()[1])}


def data_files(checkpoint: str | os.PathLike[str]) -> list[str]:
    """Every file of a checkpoint, as paths."""
    return sorted(os.path.join(root, name) for root, _, names in os.walk(checkpoint) for name in names)


def flip_bit(path: str, draw: random.Random) -> None:
    """One bit of a file changes."""
    with open(path, "r+b") as file:
        at = draw.randrange(os.path.getsize(path))
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << draw.randrange(8)]))


def rewrite_record(checkpoint: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the commit record as somebody would who knows how to sign it."""
    path = os.path.join(checkpoint, layout.RECORD)
    with open(path, encoding="utf-8") as file:
        body = json.load(file)
    body.pop("sha256")
    change(body)
    import hashlib

    body["sha256"] = hashlib.sha256(layout._canonical(body)).hexdigest()
    with open(path, "w", encoding="utf-8") as file:
        json.dump(body, file)


def rewrite_file(checkpoint: str, name: str, data: bytes) -> None:
    """Replace a file and sign it."""
    import zlib

    with open(os.path.join(checkpoint, name), "wb") as file:
        file.write(data)

    def change(body: dict[str, Any]) -> None:
        for entry in body["files"]:
            if entry["path"] == name:
                pieces = range(0, len(data), entry["chunk"])
                entry["chunks"] = [zlib.crc32(data[at : at + entry["chunk"]]) for at in pieces]
                entry["bytes"] = len(data)

    rewrite_record(checkpoint, change)


class Faults:
    """Has the n-th call into the file system fail, or every one of that kind from there on."""

    def __init__(self, patch: pytest.MonkeyPatch, directory: str) -> None:
        self.calls: list[str] = []
        self.fail_at: int | None = None
        self.lasting = False
        self.error = errno.EIO
        self.hit = ""
        self._directory, self._inside = directory, False
        for name in INJECTED:
            patch.setattr(os, name, self._wrap(name, getattr(os, name)))
        patch.setattr(files, "remove_all", self._spare(files.remove_all))

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self._inside or self.fail_at is None or not self._ours(args):
                return real(*args, **options)
            number = len(self.calls)
            self.calls.append(name)
            if number == self.fail_at:
                self.hit = name
            if number == self.fail_at or (self.lasting and self.hit == name):
                if name == "close":
                    real(*args, **options)
                raise OSError(self.error, os.strerror(self.error), *(a for a in args[:1] if isinstance(a, str)))
            return real(*args, **options)

        return call

    def _ours(self, args: tuple[Any, ...]) -> bool:
        first = args[0] if args else ""
        return isinstance(first, int) or (isinstance(first, str) and first.startswith(self._directory))

    def _spare(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Removing is not made to fail: whether nothing is left behind is what is asked."""

        def call(*args: Any, **options: Any) -> Any:
            self._inside = True
            try:
                return real(*args, **options)
            finally:
                self._inside = False

        return call

    @contextlib.contextmanager
    def failing(self, at: int, error: int, *, lasting: bool) -> Iterator[Faults]:
        """Within the block, call number `at` fails with `error`."""
        self.calls, self.hit = [], ""
        self.fail_at, self.error, self.lasting = at, error, lasting
        try:
            yield self
        finally:
            self.fail_at = None


def mode_of(path: str | Path) -> int:
    """The permission bits of a file."""
    return os.stat(path).st_mode & 0o777
