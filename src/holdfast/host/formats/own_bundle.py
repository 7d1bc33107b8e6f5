"""The bundle that this very program runs from, on a box that a desk pushed it to (docs/places.md)."""

from __future__ import annotations

import json
import os
import sys
import time

import holdfast
from holdfast.model.runs_root import bundles_dir

PACKAGE = os.path.dirname(os.path.abspath(holdfast.__file__))
HASH_LENGTH = 16
NOTE_EVERY_S = 3600.0
LARGEST_LIST = 4 << 20


def find_own_bundle(package: str = PACKAGE) -> str | None:
    """Its hash, which is its directory's name; None where holdfast is installed."""
    above = os.path.dirname(os.path.dirname(package))
    name = os.path.basename(above)
    named = len(name) == HASH_LENGTH and not set(name) - set("0123456789abcdef")
    return name if named and os.path.exists(f"{above}/bundle.json") else None


def find_own_root(package: str = PACKAGE) -> str | None:
    """The runs root below which a desk put this bundle; None where holdfast is installed."""
    return os.path.abspath(f"{package}/../../../..") if find_own_bundle(package) is not None else None


def find_reader(root: str, number: int, first: str) -> str | None:
    """The `hf.py` of a bundle of this account below `root` that reads records of format `number`.

    The bundle named `first` if it does, else any; None when there is none.
    """
    directory = bundles_dir(root, os.geteuid())
    try:
        names = [name for name in os.listdir(directory) if not name.startswith(".")]
    except OSError:
        return None
    for name in sorted(names, key=lambda name: (name != first, name)):
        try:
            with open(f"{directory}/{name}/bundle.json", "rb") as file:
                reads = json.loads(file.read(LARGEST_LIST))["format"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(reads, int) and reads >= number:
            return f"{directory}/{name}/hf.py"
    return None


def build_own_command(*words: str, package: str = PACKAGE) -> tuple[str, ...]:
    """The argument vector that is this holdfast's command line with these words, for whoever starts it later."""
    if find_own_bundle(package) is None:
        return (sys.executable, "-m", "holdfast", *words)
    script = f"{os.path.dirname(os.path.dirname(package))}/hf.py"
    return (sys.executable, "-X", "utf8", "-I", "-S", script, "--", *words)


def note_use(directory: str) -> None:
    """Note, by its modification time, that a bundle or a tree of code is used; what was used lately is not swept."""
    try:
        if time.time() - os.stat(directory).st_mtime > NOTE_EVERY_S:
            os.utime(directory)
    except OSError:
        return
