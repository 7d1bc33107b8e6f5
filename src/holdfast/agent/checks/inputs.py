"""Checks of what the job reads: inputs, configuration, data, pinned or not (PRE-02, PRE-17)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from holdfast.core.code.manifest import ROSTER
from holdfast.core.control_characters import clean
from holdfast.host.clock import monotonic_s
from holdfast.host.files.code.roster import look_at, open_memory, read_roster
from holdfast.host.files.snapshot import LOCK_NAMES, find_repository, find_upwards
from holdfast.model.finding import Finding
from holdfast.model.units import format_count

from .context import CheckContext, failed, passed, unknown, warned

if TYPE_CHECKING:
    from holdfast.core.code.manifest import Manifest

READ_WITHIN_S = 20.0
READ_BYTES_S = 200_000_000
"""What a disk may well read in a second: a file that would take longer than there is time is not begun."""
MOST_NAMED = 5
YAML = (".yaml", ".yml")
LARGEST_CONFIG_BYTES = 8 * 1024**2


def check_inputs(situation: CheckContext) -> Iterator[Finding]:
    """Declared inputs exist and can be read."""
    for path in situation.spec.inputs:
        yield _check_readable("inputs", situation.in_workdir(path), "correct `inputs`, or put the file there")


def check_data(situation: CheckContext) -> Iterator[Finding]:
    """Declared data exists, can be read, and is not an empty directory."""
    for path in situation.spec.data:
        finding = _check_readable("data", path, "correct `data`, or mount it")
        if finding.level.value == "pass" and os.path.isdir(path) and not _has_entries(path):
            finding = warned("data", path, "is an empty directory", "see whether its file system is mounted")
        yield finding
        if finding.level.value == "pass":
            yield from _check_roster(os.path.realpath(path), situation.environ)


def _check_roster(path: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Data that was pushed is what its roster says (`holdfast push`); what was touched since is read again."""
    found = _find_roster(path)
    if found is None:
        return
    directory, roster = found
    below = os.path.relpath(path, directory)
    wanted = [one for one in roster.entries if below in (".", one.path) or one.path.startswith(f"{below}/")]
    if not wanted:
        return
    memory, end = open_memory(directory, environ), monotonic_s() + READ_WITHIN_S
    wrong, unread = [], 0
    for entry in wanted:
        try:
            same = look_at(directory, entry, memory, read=entry.size < (end - monotonic_s()) * READ_BYTES_S)
        except FileNotFoundError:
            wrong.append(f"{clean(entry.path)} is missing")
        except OSError as error:
            wrong.append(f"{clean(entry.path)} cannot be read ({error.strerror})")
        else:
            wrong += [] if same is not False else [f"{clean(entry.path)} is another one"]
            unread += same is None
    if len(wanted) == len(roster.entries):
        memory.save()
    subject = f"{directory}/{ROSTER}"
    if wrong:
        more = f", and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
        count = f"{len(wrong)} of {format_count(len(wanted), 'file')} {'is' if len(wrong) == 1 else 'are'}"
        seen = f"{count} not what was pushed: {', '.join(wrong[:MOST_NAMED])}{more}"
        remedy = f"push it again, which sends what is missing: holdfast push local ... {clean(directory)}"
        yield failed("data.roster", subject, seen, remedy)
    elif unread:
        count = f"{unread} of {format_count(len(wanted), 'file')} {'was' if unread == 1 else 'were'}"
        seen = f"{count} touched since, and not read again within {READ_WITHIN_S:.0f} s"
        yield warned("data.roster", subject, f"{seen}; all sizes are right", "push it again, which reads all of them")
    else:
        count = format_count(len(wanted), "file is", "files are")
        yield passed("data.roster", subject, f"{count} what was pushed, by SHA-256")


def _find_roster(path: str) -> tuple[str, Manifest] | None:
    """The roster of a directory, or of one around it; one that cannot be read proves nothing."""
    current = path if os.path.isdir(path) else os.path.dirname(path)
    while True:
        try:
            found = read_roster(current)
        except (OSError, ValueError):
            found = None
        if found is not None:
            return current, found
        if current == os.path.dirname(current):
            return None
        current = os.path.dirname(current)


def _check_readable(check: str, path: str, remedy: str) -> Finding:
    try:
        if os.path.isdir(path):
            with os.scandir(path):
                pass
        else:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except FileNotFoundError:
        return failed(check, path, "does not exist", remedy)
    except OSError as error:
        return failed(check, path, f"cannot be read: {error.strerror}", "have its permissions changed")
    return passed(check, path, "is readable")


def _has_entries(path: str) -> bool:
    with os.scandir(path) as entries:
        return next(entries, None) is not None


def check_config(situation: CheckContext) -> Iterator[Finding]:
    """The configuration can be read and parses, as far as the standard library can tell (PRE-02)."""
    path = situation.spec.config
    if path is None:
        return
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_CONFIG_BYTES + 1)
    except OSError as error:
        yield failed("config", path, f"cannot be read: {error.strerror}", "correct `config`, or put the file there")
        return
    if len(data) > LARGEST_CONFIG_BYTES:
        yield warned("config", path, "is larger than 8 MiB and was not parsed", "see whether it is the right file")
        return
    problem = find_syntax_problem(path, data)
    if problem is not None:
        yield failed("config", path, problem, "correct that line")
    elif path.lower().endswith(YAML):
        yield passed("config", path, "is readable text (the command that started or queued it has parsed the YAML)")
    elif path.lower().endswith((".json", ".toml")):
        yield passed("config", path, "is readable and parses")
    else:
        yield passed("config", path, "is readable text (JSON, TOML and YAML are parsed, by their name)")


def find_syntax_problem(path: str, data: bytes) -> str | None:
    """What is wrong with a configuration file, with its line; None when nothing is, or its format is not known."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return f"line {data[: error.start].count(10) + 1}: not UTF-8 text"
    if path.lower().endswith(".json"):
        try:
            json.loads(text)
        except ValueError as error:
            return f"line {getattr(error, 'lineno', 1)}: {getattr(error, 'msg', error)}"
        except RecursionError:
            return "is nested too deeply"
    elif path.lower().endswith(".toml"):
        return _find_toml_problem(text)
    elif path.lower().endswith(YAML):
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("\t") or line.lstrip(" ").startswith("\t"):
                return f"line {number}: a tab in the indentation, which YAML forbids"
            if "\0" in line:
                return f"line {number}: a NUL character"
    return None


def _find_toml_problem(text: str) -> str | None:
    import importlib

    try:
        reader = importlib.import_module("tomllib")
    except ImportError:  # Python 3.10 has none: the command line has parsed it
        return None
    try:
        reader.loads(text)
    except RecursionError:
        return "is nested too deeply"
    except ValueError as error:
        return str(error)
    return None


def check_image(situation: CheckContext) -> Iterator[Finding]:
    """The job's image is here, pinned, and can be started with what goes into it (`container`, loaded for images)."""
    if situation.spec.container.image is not None:
        from .container.check import check_container  # lazy: for jobs in containers alone

        yield from check_container(situation)


def check_pins(situation: CheckContext) -> Iterator[Finding]:
    """What is installed is written down somewhere: a lock file, or pins with exact versions (PRE-17)."""
    workdir = situation.spec.workdir
    path = find_upwards(workdir, LOCK_NAMES, stop=find_repository(workdir))
    if path is None:
        return
    name = os.path.basename(path)
    if name not in ("requirements.txt", "environment.yml", "environment.yaml"):
        yield passed("pins", path, "is a lock file; it is copied into the run")
        return
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            floating = list_floating(file.read(LARGEST_CONFIG_BYTES).splitlines())
    except OSError as error:
        yield unknown("pins", path, f"cannot be read: {error.strerror}", "make it readable")
        return
    if floating:
        named = ", ".join(floating[:3]) + (f" and {len(floating) - 3} more" if len(floating) > 3 else "")
        seen = f"names packages without an exact version ({named}) and there is no lock file"
        yield warned("pins", path, seen, "lock them: uv lock, or pip freeze > requirements.txt")
    else:
        yield passed("pins", path, "names exact versions; it is copied into the run")


def list_floating(lines: list[str]) -> list[str]:
    """The requirements among these lines that do not name one exact version, by package name."""
    found = []
    for line in lines:
        text = line.partition(" #")[0].strip().lstrip("- ")
        name = text.partition("[")[0]
        if not text or text.startswith(("#", "-", "http", "git+", ".", "/")) or ":" in text or "@" in text:
            continue
        if (
            "==" not in text
            and "===" not in text
            and "=" not in text.replace(">=", "").replace("<=", "").replace("~=", "")
        ):
            found.append("".join(letter for letter in name if letter.isalnum() or letter in "-_.").strip() or text)
    return found
