"""Finding and trusting the rules file; what it says is `core.rules`'s part.

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
from typing import TYPE_CHECKING

from ..core.rules import Rules, RulesError, combine_rules, parse_rules
from ..model.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _refuse(
            path, f"cannot be opened: {error.strerror}", "make it readable for everybody (mode 0644)"
        ) from error
    try:
        _check_trust(path, os.fstat(descriptor), owners)
        _check_directory(path, owners)
        data = os.read(descriptor, LARGEST_BYTES + 1)
    except OSError as error:
        raise _refuse(path, f"cannot be read: {error.strerror}", "make it a readable regular file") from error
    finally:
        os.close(descriptor)
    if len(data) > LARGEST_BYTES:
        raise _refuse(path, f"is larger than {LARGEST_BYTES // 1024} KiB", "keep only rules in it")
    try:
        return parse_rules(data.decode("utf-8"), path)
    except UnicodeDecodeError as error:
        raise _refuse(path, f"is not UTF-8 text (byte {error.start})", "save it as UTF-8") from error
    except RulesError as error:
        raise StorageError(
            f"rules file {error}", hint="correct that line; docs/rules-file.md lists the rules"
        ) from error


def _check_trust(path: str, facts: os.stat_result, owners: set[int]) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise _refuse(path, "is not a regular file", "put a text file there or remove it")
    if facts.st_uid not in owners:
        raise _refuse(path, f"belongs to uid {facts.st_uid}", "have root own it: chown root:root")
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(facts.st_mode)
        raise _refuse(path, f"can be written by others (mode {mode:04o})", "chmod 0644 it")


def _check_directory(path: str, owners: set[int]) -> None:
    """Whoever can rename in the directory can replace the file."""
    directory = os.path.dirname(os.path.realpath(path))
    facts = os.stat(directory)
    loose = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not facts.st_mode & stat.S_ISVTX
    if loose or facts.st_uid not in owners | {0}:
        mode = stat.S_IMODE(facts.st_mode)
        seen = f"lies in {directory} (mode {mode:04o}, uid {facts.st_uid}), where others can replace it"
        raise _refuse(path, seen, f"chmod go-w {directory}, and have root own it")


def _refuse(path: str, seen: str, hint: str) -> StorageError:
    return StorageError(f"rules file {path} {seen}", hint=hint)
