"""Boxes for tests: this machine as a place that never saw us, with interpreters of the test's own."""

from __future__ import annotations

import functools
import glob
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.model.place import BoxFacts, Place
from holdfast.model.record import replace
from holdfast.model.runs_root import bundles_dir
from holdfast.transfer.box import Box
from holdfast.transfer.bundle import receive
from holdfast.transfer.bundle.build import Bundle, build_bundle
from holdfast.transport.local import LocalTransport
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.transport.base import Done

CP = "/bin/cp"
OLDEST, NEWEST = (3, 10), (3, 13)


class CountingTransport(LocalTransport):
    """This machine, with every call that is made noted: its script and how many bytes went with it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def run(self, script: str, words: Sequence[str] = (), **options: object) -> Done:
        data = options.get("stdin", b"")
        self.calls.append((script, len(data) if isinstance(data, bytes) else -1))
        return super().run(script, words, **options)  # type: ignore[arg-type]


def make_root() -> Path:
    """An empty runs root. In memory, where there is some: a bundle has hundreds of files, and each test pushes one."""
    return Path(tempfile.mkdtemp(prefix="hf-box-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))


@functools.cache
def pack() -> Bundle:
    """The bundle of this checkout, packed once for each worker."""
    made = build_bundle({})
    assert made.data
    return made


def make_box(root: Path | str | None, *, python: str | None = None, facts: BoxFacts | None = None) -> Box:
    """A box of this machine whose runs root is `root`; what it remembers is `box.facts`."""
    place = Place("gpu1", root=None if root is None else str(root), python=python)
    box = Box(place, CountingTransport(), facts=facts, remember=lambda _: None)
    box._bundle = pack()
    return box


class MetBox:
    """A box that was met, of which each test gets a copy: hard links, so nothing in a copy may be written in place."""

    def __init__(self) -> None:
        self.root = make_root()
        # As everywhere in tests: the machine has no cards, and what this worker's first test set is not kept.
        facts = make_box(self.root, python=next(list_pythons())).ensure()
        self.facts = replace(facts, cards=())
        # What follows a push compiles the bundle: a file that has its name for a moment only cannot be copied.
        wait_until(lambda: not is_used(str(self.root)), what="all of it is compiled")

    def copy(self, root: Path) -> Box:
        """A box at another runs root, with the bundle there and all known."""
        subprocess.run([CP, "-a", "-l", bundles_dir(str(self.root), os.geteuid()), root], check=True)
        return make_box(root, facts=replace(self.facts, root=str(root)))


def calls_of(box: Box) -> list[tuple[str, int]]:
    """What was sent so far."""
    assert isinstance(box.transport, CountingTransport)
    return box.transport.calls


def bundle_of(box: Box) -> Path:
    """Where its bundle lies."""
    assert box.facts is not None
    return Path(bundles_dir(box.facts.root, os.geteuid()), box.facts.bundle)


def remove_tree(path: Path) -> None:
    """Read-only directories too, once no process writes what it compiled there."""
    wait_until(lambda: not is_used(str(path)), what=f"nobody runs from {path}")
    receive.remove(str(path))


def is_used(path: str) -> bool:
    """Whether a process that runs from below `path` is there, other than a supervisor."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read()
        except OSError:
            continue
        if path.encode() in words and b"hf.py" in words and b"supervise" not in words:
            return True
    return False


def list_pythons() -> Iterator[str]:
    """One interpreter of each version that this machine has, of those that we run on."""
    seen = set()
    patterns = [
        "/usr/bin/python3.1[0-9]",
        "/usr/local/bin/python3.1[0-9]",
        f"{os.path.expanduser('~root')}/.pyenv/versions/*/bin/python3.1[0-9]",
        f"{os.path.expanduser('~root')}/.local/share/uv/python/*/bin/python3.1[0-9]",
    ]
    for path in (path for pattern in patterns for path in sorted(glob.glob(pattern))):
        minor = int(path.rpartition(".")[2])
        if OLDEST[1] <= minor <= NEWEST[1] and minor not in seen:
            seen.add(minor)
            yield path
