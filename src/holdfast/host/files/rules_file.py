"""Finds the rules file and checks that it may be trusted; `core.rules.rules` reads it.

The machine's file is ``/etc/holdfast/rules.toml`` and binds every account, so it counts only when root owns it and
nobody else can write it or replace it. ``HOLDFAST_RULES`` names another file: for root instead of the machine's, for
everybody else in addition to it, the stricter of the two in each point, so that a variable cannot lift a rule. That
file must be root's or the caller's own.

No file: the defaults. A file that exists and cannot be read, is not trusted or is malformed is an error: a rule that
nobody can read is not "no rule".
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from holdfast.core.rules.rules import Rules, RulesError, combine_rules, parse_rules
from holdfast.model.errors import StorageError

from .ownership import describe_weakness

MACHINE_FILE = "/etc/holdfast/rules.toml"
VARIABLE = "HOLDFAST_RULES"
LARGEST_BYTES = 64 * 1024


def read_rules(environ: Mapping[str, str], *, machine_file: str = MACHINE_FILE) -> Rules:
    """The rules in force for this process.

    Raises:
        StorageError: a rules file exists and cannot be read, is not trustworthy, or is malformed.
    """
    own = environ.get(VARIABLE, "")
    uid = os.geteuid()
    if not own or os.path.realpath(own) == os.path.realpath(machine_file):
        return _read_one(machine_file, {0}) or Rules()
    asked = _read_one(own, {0, uid}) or Rules()
    machine = None if uid == 0 else _read_one(machine_file, {0})
    return asked if machine is None else combine_rules(machine, asked)


def _read_one(path: str, owners: set[int]) -> Rules | None:
    """The rules in one file; None when there is no such file."""
    text = read_trusted(path, "rules file", owners)
    if text is None:
        return None
    try:
        _check_directory(path, owners)
    except OSError as error:
        raise _refuse("rules file", path, f"cannot be judged: {error.strerror}", "see its directory") from error
    try:
        return parse_rules(text, path)
    except RulesError as error:
        raise StorageError(
            f"rules file {error}", hint="correct that line; holdfast's docs/rules-file.md lists the rules"
        ) from error


def read_trusted(path: str, what: str, owners: set[int]) -> str | None:
    """The text of a file in which rules stand (`what`, in words); None when there is none.

    Raises:
        StorageError: it cannot be read, belongs to nobody of `owners`, can be written by others, or is no text.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _refuse(what, path, f"cannot be opened: {error.strerror}", "make it readable (mode 0644)") from error
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise _refuse(what, path, "is not a regular file", "put a text file there or remove it")
        if facts.st_uid not in owners:
            own = "" if owners == {0} else ", or have one of your own"
            raise _refuse(what, path, f"belongs to uid {facts.st_uid}", f"have root own it: chown root:root{own}")
        if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            mode = stat.S_IMODE(facts.st_mode)
            raise _refuse(what, path, f"can be written by others (mode {mode:04o})", f"chmod go-w {path}")
        data = os.read(descriptor, LARGEST_BYTES + 1)
    except OSError as error:
        raise _refuse(what, path, f"cannot be read: {error.strerror}", "make it a readable regular file") from error
    finally:
        os.close(descriptor)
    if len(data) > LARGEST_BYTES:
        raise _refuse(what, path, f"is larger than {LARGEST_BYTES // 1024} KiB", "keep only rules in it")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refuse(what, path, f"is not UTF-8 text (byte {error.start})", "save it as UTF-8") from error


def _check_directory(path: str, owners: set[int]) -> None:
    """Whoever can rename in a directory above the file can replace it."""
    weakness = describe_weakness(os.path.dirname(os.path.abspath(path)), owners)
    if weakness:
        seen = f"lies where others can replace it: {weakness}"
        raise _refuse("rules file", path, seen, "chmod go-w that directory, and have root own it")


def _refuse(what: str, path: str, seen: str, hint: str) -> StorageError:
    return StorageError(f"{what} {path} {seen}", hint=hint)
