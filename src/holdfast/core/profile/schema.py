"""What one file of a profile may say, checked key by key. Pure; lines are found by who read the file.

Nothing is guessed: an unknown key, a value of the wrong form, a fact without a date and a source are problems, each
with the path of its key. ``"measure"`` says that a fact depends on the box and is to be measured: it needs no date.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from holdfast.core.job.redact import is_secret_value
from holdfast.core.near import find_near
from holdfast.model.pattern import compile_later
from holdfast.model.profile import DEPENDS, HOOK, NO, VARIABLES, YES
from holdfast.model.record import record
from holdfast.model.units import parse_bytes, parse_duration

BASELINE = "generic-ssh"
MEASURE = "measure"
SECTIONS = ("launch", "storage", "network", "interruption", "teardown", "detach", "gotchas", "overrides")
"""What every profile says for people, in this order."""
METERED = ("money", "quota", "none")
LONGEST_TEXT = 4000

Path: TypeAlias = tuple[str, ...]
_NAME = compile_later(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)


@record
class Problem:
    """One thing that is wrong in a file: the path of its key, and words."""

    path: tuple[str, ...]
    words: str


class _WrongError(ValueError):
    """A value is not what its key takes."""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _WrongError(f"expected text in quotes, found {_show(value)}")
    if len(value) > LONGEST_TEXT or "\0" in value:
        raise _WrongError(f"is longer than {LONGEST_TEXT} characters, or holds a zero byte")
    if is_secret_value(value):
        raise _WrongError("looks like a secret; profiles are copied to boxes and records, so no secret stands in one")
    return value.strip()


def _choice(*choices: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        text = _text(value)
        if text in choices:
            return text
        near = find_near(text, choices)
        raise _WrongError(f"{text[:40]!r} is none of {', '.join(choices)}" + (f"; {near}?" if near else ""))

    return read


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _WrongError(f'expected true, false or "{MEASURE}", found {_show(value)}')
    return value


def _measured(read: Callable[[object], object]) -> Callable[[object], object]:
    return lambda value: None if value == MEASURE else read(value)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
        raise _WrongError(f"expected a number that is not negative, found {_show(value)}")
    return float(value)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 60:
        raise _WrongError(f"expected a whole number that is not negative, found {_show(value)}")
    return value


def _duration(value: object) -> float:
    if not isinstance(value, (int, float, str)):
        raise _WrongError(f"expected a duration like 30s or 15d, found {_show(value)}")
    return parse_duration(value)


def _size(value: object) -> int:
    if not isinstance(value, (int, str)):
        raise _WrongError(f"expected a size like 200GB, found {_show(value)}")
    return parse_bytes(value)


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _WrongError(f"expected a list of texts, found {_show(value)}")
    return tuple(map(_text, value))


def _beginnings(value: object) -> tuple[str, ...]:
    paths = _texts(value)
    for path in paths:
        if not path.startswith(("/", "~", "$")) or ".." in path.split("/"):
            raise _WrongError(f"{path[:80]!r} is no beginning of paths there: /..., ~/... or $NAME/...")
    return tuple(path.rstrip("/") or "/" for path in paths)


def _directory(value: object) -> str:
    text = _text(value)
    if not text.startswith("/") or ".." in text.split("/"):
        raise _WrongError(f"{text[:80]!r} is no absolute path")
    return text.rstrip("/") or "/"


def _survival(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise _WrongError(f"expected a table of verbs, found {_show(value)}")
    return {str(verb): _choice(YES, NO, DEPENDS)(answer) for verb, answer in value.items()}


def _date(value: object) -> str:
    text = value.isoformat() if isinstance(value, dt.date) else _text(value)
    try:
        return dt.date.fromisoformat(text).isoformat()
    except ValueError:
        raise _WrongError(f"{text[:40]!r} is no day; write it like 2026-06-01") from None


def _said(value: object) -> str:
    if not (text := _text(value)):
        raise _WrongError("is empty; say where it is from: a page, a measurement")
    return text


def _show(value: object) -> str:
    if isinstance(value, Mapping):
        return "a table"
    return "a list" if isinstance(value, list) else repr(value)[:60]


Reader: TypeAlias = Callable[[object], object]
FACTS: dict[str, Reader] = {
    "meter_stop": _text,
    "spot": _measured(_flag),
    "grace": _measured(_duration),
    "notice": _text,
    "interruptions": _measured(_duration),
    "runtime_cap": _measured(_duration),
    "egress_per_gb": _measured(_number),
    "mirror_needed": _measured(_flag),
    "max_cuda": _text,
    "local_nvme": _measured(_flag),
    "home": _directory,
}
"""Statements of one value about someone else's system."""
STAMP: dict[str, Reader] = {"verified_on": _date, "source": _said}
PLAIN: dict[str, Reader] = {
    "title": _text,
    "inherits": _text,
    "leaves_out": _texts,
    "kind": _choice("ssh", "local", "slurm", "kubernetes", "notebook"),
    "metered": _choice(*METERED),
    "detach": _text,
    "currency": _text,
}
TABLES: dict[str, dict[str, Reader]] = {
    "tiers": {
        **STAMP,
        "paths": _beginnings,
        "survives": _survival,
        "shared_with": _text,
        "cap": _measured(_size),
        "cap_inodes": _measured(_whole),
        "bills_after": _texts,
        "note": _text,
    },
    "verbs": {
        **STAMP,
        "how": _text,
        "stops_meter": _measured(_flag),
        "irreversible": _flag,
        "destroys": _texts,
        "keeps": _texts,
        "still_bills": _texts,
    },
    "clocks": {**STAMP, "begins": _text, "after": _duration, "what": _text},
    "facts": {**STAMP, "text": _text},
}
NEEDED = {"tiers": ("paths", "survives"), "verbs": ("how", "irreversible"), "clocks": ("begins", "after", "what")}
"""What a tier, a verb and a clock have, when all files were laid over each other."""
KEYS = (*PLAIN, *FACTS, *STAMP, *TABLES, "variables", "sections")


def check_file(content: Mapping[str, object], *, own: bool) -> tuple[dict[str, object], list[Problem]]:
    """What a file says, with values read, and everything that is wrong in it.

    `own`: it is the user's own file, which alone may have hooks.
    """
    stated: dict[str, object] = {}
    problems: list[Problem] = []
    for key, value in content.items():
        if key in TABLES:
            stated[key] = dict(_read_tables((key,), value, TABLES[key], problems))
        elif key in ("variables", "sections"):
            known = VARIABLES if key == "variables" else SECTIONS
            stated[key] = _read_table((key,), value, dict.fromkeys(known, _text), problems)
        else:
            stated.update(_read_table((), {key: value}, {**PLAIN, **FACTS, **STAMP}, problems, KEYS))
    variables = stated.get("variables")
    if not own and isinstance(variables, dict) and variables.get(HOOK):
        problems.append(Problem(("variables", HOOK), "a hook is run, so it stands in a file of your own only"))
    problems += _find_undated(stated)
    return stated, problems


def _read_tables(
    path: Path, value: object, readers: Mapping[str, Reader], problems: list[Problem]
) -> Iterator[tuple[str, dict[str, object]]]:
    if not isinstance(value, Mapping):
        problems.append(Problem(path, f"expected a table of tables, found {_show(value)}"))
        return
    for name, inner in value.items():
        if not _NAME.fullmatch(str(name)):
            problems.append(Problem((*path, str(name)), "a name has small letters, digits, dashes, dots, underscores"))
        yield str(name), _read_table((*path, str(name)), inner, readers, problems)


def _read_table(
    path: Path,
    value: object,
    readers: Mapping[str, Reader],
    problems: list[Problem],
    known: tuple[str, ...] = (),
) -> dict[str, object]:
    if not isinstance(value, Mapping):
        problems.append(Problem(path, f"expected a table, found {_show(value)}"))
        return {}
    found: dict[str, object] = {}
    for key, item in value.items():
        read = readers.get(str(key))
        if read is None:
            problems.append(Problem((*path, str(key)), _unknown(str(key), known or tuple(readers))))
            continue
        try:
            found[str(key)] = read(item)
        except ValueError as error:
            problems.append(Problem((*path, str(key)), str(error)))
    return found


def _unknown(key: str, known: tuple[str, ...]) -> str:
    near = find_near(key, known)
    return f"unknown key; did you mean {near}?" if near else f"unknown key; there are {', '.join(known)}"


def list_facts(stated: Mapping[str, object]) -> Iterator[tuple[Path, Mapping[str, object]]]:
    """The path of each statement that needs a stamp, and the table in which it may have one of its own.

    A stamp of ``facts`` is that of the statement of one value with its name. What is to be measured needs none.
    """
    own = stated.get("facts")
    stamps = own if isinstance(own, dict) else {}
    for key in FACTS:
        if stated.get(key) not in (None, ""):
            yield (key,), stamps.get(key, {})
    for table in TABLES:
        tables = stated.get(table)
        for name, inner in tables.items() if isinstance(tables, dict) else ():
            if table != "facts" or name not in FACTS or stated.get(name) is None:
                yield (table, name), inner


def _find_undated(stated: Mapping[str, object]) -> Iterator[Problem]:
    for path, table in list_facts(stated):
        missing = [key for key in STAMP if key not in table and key not in stated]
        if missing:
            where = f"in [{'.'.join(path)}]" if len(path) > 1 else f"in [facts.{path[0]}]"
            yield Problem(
                path, f"a fact without {' and '.join(missing)}; write them {where}, or at the top of the file"
            )
