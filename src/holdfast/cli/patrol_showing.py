"""A patrol's tick in words and as JSON: the status line first, then the runs that need a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.model.units import format_duration

from .render import clean, note, paint

if TYPE_CHECKING:
    from holdfast.agent.patrol import Seen, Tick
    from holdfast.core.patrol import Line

MOST = 5
"""So many runs are named in a message: it must fit into a pipe at once."""
LONGEST = 250


def encode_tick(tick: Tick) -> dict[str, Any]:
    """The JSON object of ``patrol --json``."""
    return {
        "at": tick.at,
        "host": tick.host,
        "summary": tick.summary,
        "exit_code": tick.exit_code,
        "escalate": bool(tick.exit_code),
        "alive": tick.alive,
        "took_s": tick.took_s,
        "other_accounts": tick.foreign,
        "blind": tick.blind,
        "notice": tick.notice,
        "runs": [_encode(seen) for seen in tick.seen],
    }


def encode_brief(tick: Tick) -> dict[str, Any]:
    """The message for people who are told: short, and without what looks like a secret."""
    from holdfast.core.redact import redact_text

    return {
        "at": tick.at,
        "host": tick.host,
        "summary": tick.summary,
        "blind": [redact_text(text)[:LONGEST] for text in tick.blind[:3]],
        "runs": [
            {
                "run_id": seen.run_id,
                "standing": seen.standing,
                "text": redact_text("; ".join(line.text for line in _lines(seen) if line.escalate))[:LONGEST],
                "action": next(line.action for line in _lines(seen) if line.escalate)[:LONGEST],
            }
            for seen in tick.escalations[:MOST]
        ],
    }


def _lines(seen: Seen) -> list[Line]:
    return [seen.judgement.ending, *seen.judgement.alarms]


def _encode(seen: Seen) -> dict[str, Any]:
    return {
        "run_id": seen.run_id,
        "run_dir": seen.run_dir,
        "attempt": seen.attempt,
        "standing": seen.standing,
        "escalate": seen.escalate,
        "news": seen.news,
        "alive": seen.alive,
        "step": seen.step,
        "progress_age_s": seen.progress_age_s,
        "lines": _lines(seen),
    }


def print_tick(tick: Tick, *, everything: bool, news_only: bool) -> None:
    """Print the status line, the runs that need a person, and with `everything` the others."""
    print(tick.summary)
    if tick.notice:
        note(tick.notice)
    for problem in tick.blind:
        note(f"could not be looked at: {problem}")
    quiet = 0
    for seen in sorted(tick.seen, key=lambda seen: not seen.escalate):
        if everything or (seen.escalate and (seen.news or not news_only or seen.standing.value != "dead")):
            _print_run(seen, everything=everything, marked=news_only)
        elif seen.escalate:
            quiet += 1
    if quiet:
        note(f"{quiet} that were told before need a person still")
    if tick.foreign and everything:
        note(f"{tick.foreign} runs of other accounts were not looked at")


def _words(seen: Seen, line: Line) -> str:
    if line.row != "running" or seen.step is None or seen.progress_age_s is None:
        return line.text
    return f"step {seen.step}, moved {format_duration(seen.progress_age_s)} ago"


def _print_run(seen: Seen, *, everything: bool, marked: bool) -> None:
    told = _lines(seen) if everything else [line for line in _lines(seen) if line.escalate]
    still = "still: " if marked and not seen.news else ""
    for number, line in enumerate(told):
        head = f"{paint(seen.standing.value)}  {seen.run_id}  " if number == 0 else "  "
        print(f"{head}{still}{clean(_words(seen, line))}")
        if line.action:
            print(f"    -> {clean(line.action)}")
