"""Aliases of ssh's own configuration: a literal ``Host`` of it is a place without further ado.

What ssh takes for an alias ssh says itself (``ssh -v -G`` names the block that applies). Its files are read here only
to list aliases: for the nearest name, and at a TAB, where nothing touches the network. OpenSSH looks for its files in
the home of the password database, whatever ``HOME`` says (ssh_config(5), "FILES").
"""

from __future__ import annotations

import glob
import os
import pwd
import re
import shlex
import subprocess

from holdfast.model.record import record
from holdfast.transport.ssh.command import PROGRAM_VARIABLE, find_program

from .regular_file import read_regular

DEEPEST_INCLUDE = 16
"""Source: ssh_config's READCONF_MAX_DEPTH (readconf.c, OpenSSH 9.2)."""
MOST_ALIASES = 5000
MOST_BYTES = 1 << 20
PATIENCE_S = 10

_LINE = re.compile(r"\s*(host|include)(?:\s*=\s*|\s+)(.*)", re.IGNORECASE)
_APPLIED = re.compile(r"^debug1: .* line \d+: Applying options for (.+?)\r?$", re.MULTILINE)
_READ = re.compile(r"^debug1: Reading configuration data (.+?)\r?$", re.MULTILINE)


@record
class SshView:
    """How ssh itself understands a host: its options by lower-case name, and the patterns of ``Host`` that applied."""

    options: dict[str, str]
    applied: tuple[str, ...]
    files: tuple[str, ...]


def ask_ssh(host: str, *options: str) -> SshView | None:
    """What ``ssh -G`` says of a host, without connecting; None when there is no ssh, or it does not understand.

    Source: ssh(1), "-G"; the lines of ``-v`` are those of OpenSSH 7.3 to 9.9.
    """
    try:
        done = subprocess.run(
            [find_program(), "-v", *options, "-G", "--", host],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    said = done.stderr.decode(errors="replace")
    found: dict[str, str] = {}
    for line in done.stdout.decode(errors="replace").splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key.lower(), value)
    return SshView(found, tuple(_APPLIED.findall(said)), tuple(_READ.findall(said)))


def is_alias(name: str) -> bool:
    """Whether a ``Host`` of ssh's configuration names exactly this."""
    view = ask_ssh(name)
    if view is None:
        return False
    return name in view.applied or name in _read_files(view.files)


def list_aliases() -> list[str]:
    """The literal aliases of ssh's configuration, in order of appearance: of the program's own where one is named.

    Files that cannot be read have none.
    """
    if os.environ.get(PROGRAM_VARIABLE):
        view = ask_ssh("localhost", "-o", "CanonicalizeHostname=no")  # which would ask for names
        return _read_files(view.files) if view is not None else []
    return read_aliases(os.path.join(account_home(), ".ssh", "config"), account_home())


def account_home() -> str:
    """The home of the password database, which ssh goes by."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return os.path.expanduser("~")


def _read_files(paths: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(name for path in paths for name in read_aliases(path, account_home())))


def read_aliases(path: str, home: str) -> list[str]:
    """The literal ``Host`` names of a configuration file and of those that it includes; patterns are none."""
    found: dict[str, None] = {}
    _collect(path, home, 0, found)
    return list(found)


def _collect(path: str, home: str, depth: int, found: dict[str, None]) -> None:
    for line in _read_lines(path):
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        try:
            words = shlex.split(match[2], comments=True)
        except ValueError:
            continue
        if match[1].lower() == "include":
            for pattern in words if depth < DEEPEST_INCLUDE else ():
                for inner in sorted(glob.glob(_place_include(pattern, home))):
                    _collect(inner, home, depth + 1, found)
            continue
        for word in words:
            if len(found) < MOST_ALIASES and not set(word) & set("*?!,"):
                found.setdefault(word)


def _place_include(pattern: str, home: str) -> str:
    """Source: ssh_config(5), "Include": relative to ``~/.ssh``; ``~`` is the home."""
    if pattern.startswith("~/"):
        return home + pattern[1:]
    return os.path.join(home, ".ssh", pattern)


def _read_lines(path: str) -> list[str]:
    try:
        return read_regular(path, MOST_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []
