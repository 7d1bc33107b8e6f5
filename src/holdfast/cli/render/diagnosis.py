"""A diagnosis for people: the verdict, then what it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.verdict import LiveClass

from . import clean, heading, pairs
from .explain import BY_ITSELF, RETRIES

if TYPE_CHECKING:
    from holdfast.agent.view.page.diagnosis import DiagnosisReport
    from holdfast.diagnosis.live.report import Section
    from holdfast.model.verdict import Clue, Verdict


def print_answer(answer: DiagnosisReport) -> None:
    """The verdict for a person, then what it came from."""
    verdict = answer.verdict
    attempt = "" if answer.attempt is None else f", attempt {answer.attempt}"
    if verdict is None:
        well = "but see the warnings" if answer.warnings else "nothing speaks against it"
        print(clean(f"{answer.subject}{attempt}: succeeded; {well}"))
    else:
        heading(clean(f"{answer.subject}{attempt}: {verdict.kind.value} ({verdict.confidence.value})"))
        lines: list[tuple[str, object]] = [("state", answer.condition or None)]
        lines += [("cause", None if answer.live else verdict.cause), ("do", verdict.action)]
        lines += [("also", "\n".join(verdict.others) or None)]
        lines += [(BY_ITSELF, None if isinstance(verdict.kind, LiveClass) else _describe_retry(answer, verdict))]
        lines += [("explain", f"holdfast explain {gotcha}") for gotcha in verdict.gotchas]
        pairs([(key, value) for key, value in lines if value], indent=2)
        _print_clues("evidence for it", verdict.evidence_for)
        _print_clues("against it, and what it was not", verdict.evidence_against)
        _print_clues("could not be read", verdict.unknown)
    for warning in answer.warnings:
        print(clean(f"  warning: {warning}"))
    if answer.sections:
        print()
    _print_sections(answer.sections)
    if answer.bundle is not None:
        heading("archive")
        left = "\n".join(answer.bundle.left_out) or "nothing"
        pairs([("file", answer.bundle.path), ("left out", left)], indent=2)


def _describe_retry(answer: DiagnosisReport, verdict: Verdict) -> str:
    """What was decided, where it was no; else what may be done after an end of this class."""
    return f"no, {answer.not_again}" if answer.not_again else RETRIES[verdict.retry.value]


def _print_clues(title: str, clues: tuple[Clue, ...]) -> None:
    if clues:
        heading(title)
        for clue in clues:
            source = f"  [{clue.place}]" if clue.source else ""
            print(clean(f"  {' '.join(clue.text.split())}{source}"))


def _print_sections(sections: tuple[Section, ...]) -> None:
    """The ordered sections of a live look; one that has nothing to say is left out."""
    for section in sections:
        if not section.lines and not section.unread:
            continue
        heading(clean(section.title))
        for line in (*section.lines, *(f"could not be read: {why}" for why in section.unread)):
            print(clean(f"  {line}"))
