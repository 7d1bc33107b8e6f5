"""A box's answer to ``agent poll``, taken for what it may be: somebody else's text. Pure.

Another account, or whoever broke into the box, may have written it. A row counts only when each of its fields has the
type and size that ours have, and only for a run that was asked for, where single runs were. Text loses everything that
could steer a terminal. What does not fit is left out and said to be; it never becomes part of another place's runs,
because a sighting is keyed by place and id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.model.ids import is_run_id, name_of
from holdfast.model.run import SCHEMA
from holdfast.model.sighting import Poll, Reach, Sighting

MOST_ROWS = 5000
LONGEST_PATH = 4096
LARGEST_NUMBER = 1 << 62
LONGEST_NOTICE = 300
MALFORMED = "malformed"
"""`Poll.why` of an answer that is none."""

Row = dict[str, Any]


def read_answer(place: str, answer: object, *, at: str, asked: Iterable[str] = (), only: bool = False) -> Poll:
    """What an answer says that was asked for `at`; with `only`, of the runs `asked` for and no others."""
    wanted = frozenset(asked)
    problem = _find_problem(answer)
    if problem:
        return Poll(place, at, unreachable=f"its answer was not understood: {problem}", why=MALFORMED)
    assert isinstance(answer, dict)
    sightings: dict[str, Sighting] = {}
    refused = max(0, len(answer["runs"]) - MOST_ROWS)
    for value in answer["runs"][:MOST_ROWS]:
        row = read_row(value)
        if row is None or row["run_id"] in sightings or (only and row["run_id"] not in wanted):
            refused += 1
            continue
        sightings[row["run_id"]] = _see(place, row, at)
    notices = [clean_text(answer["notice"], LONGEST_NOTICE)] if isinstance(answer.get("notice"), str) else []
    if refused:
        notices.append(f"{refused} rows of its answer were not understood, or nobody had asked for them")
    absent = [text for text in _texts(answer.get("absent")) if text in wanted and text not in sightings]
    missing = tuple(text[:LONGEST_PATH] for text in _texts(answer.get("missing_roots"))[:100])
    complete = answer.get("complete") is True and not (only or missing or refused)
    known = None if only else _read_count(answer.get("known"))
    return Poll(place, at, sightings, tuple(absent), missing, complete, notice="; ".join(notices), known=known)


def read_row(value: object) -> Row | None:
    """One run of an answer with exactly the fields that we know; None when it is not one."""
    if not isinstance(value, dict) or not isinstance(value.get("run_id"), str) or not is_run_id(value["run_id"]):
        return None
    row: Row = {"run_id": value["run_id"], "name": name_of(value["run_id"])}
    for name, (read, required) in _FIELDS.items():
        found = value.get(name)
        if found is None and not required:
            row[name] = None
            continue
        try:
            row[name] = read(found)
        except (ValueError, TypeError):
            return None
    return row


def clean_text(text: str, longest: int) -> str:
    """`text` of a stranger in one line, at most `longest` long, with what is not printable made visible.

    That are also the characters that turn the direction of writing, or have no width.
    """
    return "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in text[:longest])


def _see(place: str, row: Row, at: str) -> Sighting:
    return Sighting(
        place=place,
        run_id=row["run_id"],
        seen_at=at,
        by="agent",
        reach=Reach.HERE,
        condition=row["condition"],
        ended=row["ended"],
        exit_code=row["exit_code"],
        desired=row["desired"],
        row=row,
    )


def _find_problem(answer: object) -> str:
    if not isinstance(answer, dict):
        return f"it is {type(answer).__name__}, not an object"
    if answer.get("schema") != SCHEMA:
        return f"its schema is {clean_text(str(answer.get('schema')), 20)}, not {SCHEMA}"
    return "" if isinstance(answer.get("runs"), list) else "it has no list of runs"


def _read_count(value: object) -> int | None:
    try:
        return max(0, _number(value))
    except ValueError:
        return None


def _texts(value: object) -> list[str]:
    return (
        [clean_text(item, LONGEST_PATH) for item in value if isinstance(item, str)] if isinstance(value, list) else []
    )


def _text(longest: int) -> Callable[[object], str]:
    def read(value: object) -> str:
        if not isinstance(value, str):
            raise TypeError
        return clean_text(value, longest)

    return read


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= LARGEST_NUMBER:
        raise ValueError
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        raise ValueError
    return float(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


_FIELDS: dict[str, tuple[Callable[[object], object], bool]] = {
    "root": (_text(LONGEST_PATH), True),
    "run_dir": (_text(LONGEST_PATH), True),
    "attempt": (_number, True),
    "condition": (_text(60), True),
    "exit_code": (_number, False),
    "created_at": (_text(40), True),
    "started_at": (_text(40), False),
    "ended_at": (_text(40), False),
    "cards": (_text(100), True),
    "step": (_number, False),
    "planned_steps": (_number, False),
    "left_s": (_seconds, False),
    "standstill_s": (_seconds, False),
    "loss": (_text(40), False),
    "note": (_text(300), True),
    "failure": (_text(60), True),
    "ended": (_flag, True),
    "elapsed_s": (_seconds, False),
    "desired": (_text(40), False),
    "submitted_by": (_text(100), False),
    "submitted_from": (_text(100), False),
    "vanished": (_flag, False),
}
"""What a row has: how each is read, and whether it must be there. Paths are the box's: they are only ever shown."""
