"""From the answers of all detectors to one verdict with one action. Pure.

The surest yes decides; among equals, the first of the ladder. What the other detectors say is not lost: a yes for
another class goes to `also`, a no is told with the class that it rules out, and what could not be read is unknown,
never a no.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.model.record import replace
from holdfast.model.verdict import Clue, Confidence, FailureClass, RetryPolicy, Verdict

from .evidence import Answer, Detection
from .remedies import REMEDIES

SURENESS = {Confidence.CERTAIN: 0, Confidence.LIKELY: 1, Confidence.POSSIBLE: 2}
MOST_CLUES = 12


def fold_verdict(detections: tuple[Detection, ...], ending: Clue | None = None) -> Verdict:
    """One verdict; `ending` is how it ended in words, which every verdict cites first."""
    said = [item for item in detections if item.answer is Answer.YES and isinstance(item.kind, FailureClass)]
    best = min(said, key=lambda item: SURENESS[item.confidence], default=None)
    unknown = _unique(clue for item in detections for clue in item.unknown)
    first = () if ending is None else (ending,)
    if best is None:
        against = _unique(_rule_out(detections, None))
        remedy = REMEDIES[FailureClass.UNKNOWN]
        return Verdict(
            FailureClass.UNKNOWN,
            Confidence.POSSIBLE,
            remedy.render(next((item.facts for item in detections if "run" in item.facts), {})),
            first,
            against,
            unknown,
            retry=RetryPolicy.NEVER,
        )
    assert isinstance(best.kind, FailureClass)
    also, also_for = list_others(sorted(said, key=lambda item: SURENESS[item.confidence]), best)
    same = [best, *(item for item in said if item is not best and item.kind is best.kind)]
    facts = {key: value for item in reversed(same) for key, value in item.facts.items()}
    return Verdict(
        kind=best.kind,
        confidence=best.confidence,
        action=_choose_action(best, facts),
        evidence_for=_unique([*first, *(clue for item in same for clue in item.evidence_for)]),
        evidence_against=_unique(
            [*(clue for item in same for clue in item.evidence_against), *_rule_out(detections, best)]
        ),
        unknown=unknown,
        detector=best.detector,
        gotchas=tuple(dict.fromkeys(gotcha for item in same for gotcha in item.gotchas)),
        retry=_choose_retry(best.kind, facts),
        also=also,
        also_for=also_for,
        cards=tuple(best.facts.get("cards", "").split()),
        wait_s=float(best.facts.get("wait_s") or 0),
    )


def _rule_out(detections: tuple[Detection, ...], best: Detection | None) -> Iterator[Clue]:
    """What speaks against other classes, each clue with the class that it rules out; and against an unsure verdict."""
    for item in detections:
        if item.answer is not Answer.NO:
            continue
        if best is None or item.kind is not best.kind:
            for clue in item.evidence_against:
                yield replace(clue, text=f"not {item.kind.value}: {clue.text}")
        elif best.confidence is not Confidence.CERTAIN:
            yield from item.evidence_against


def _choose_action(best: Detection, facts: dict[str, str]) -> str:
    """The class's own action; what a refusal or a pattern says more exactly goes before it.

    Never before that of the box's memory: its text forbids what people try first, a smaller batch (FAIL-04).
    """
    assert isinstance(best.kind, FailureClass)
    exact = best.facts.get("action") or best.facts.get("remedy")
    if exact and best.kind is not FailureClass.OUT_OF_MEMORY:
        return exact
    return REMEDIES[best.kind].render(facts)


def _choose_retry(kind: FailureClass, facts: dict[str, str]) -> RetryPolicy:
    """As the table says; a card's memory that nobody else held is not there at the next try either."""
    retry = REMEDIES[kind].retry
    return RetryPolicy.NEVER if retry is RetryPolicy.WHEN_ALONE and not facts.get("tenants") else retry


def list_others(items: Iterable[Detection], best: Detection) -> tuple[tuple[str, ...], tuple[Clue, ...]]:
    """The classes of these but for that of the verdict, in their order, and the first clue for each that has one."""
    found: dict[str, Clue | None] = {}
    for item in items:
        if item.kind is not best.kind:
            first = next(iter(item.evidence_for), None)
            found[item.kind.value] = found.get(item.kind.value) or first
    clues = (replace(clue, text=f"{kind}: {clue.text}") for kind, clue in found.items() if clue is not None)
    return tuple(found), tuple(clues)


def _unique(clues: Iterable[Clue]) -> tuple[Clue, ...]:
    """Each statement once, in order; not more than a person reads."""
    kept: list[Clue] = []
    for clue in clues:
        # A detector may repeat the first half of how it ended.
        if not any(clue.text == other.text or _is_part(clue, other) for other in kept):
            kept.append(clue)
    return tuple(kept[:MOST_CLUES])


def _is_part(clue: Clue, of: Clue) -> bool:
    return clue.source == of.source and of.text.startswith(f"{clue.text}; ")


def redact_verdict(verdict: Verdict, clean: object) -> Verdict:
    """The verdict with every text passed through `clean`."""
    assert callable(clean)

    def wash(clues: tuple[Clue, ...]) -> tuple[Clue, ...]:
        return tuple(replace(clue, text=clean(clue.text)) for clue in clues)

    return replace(
        verdict,
        action=clean(verdict.action),
        evidence_for=wash(verdict.evidence_for),
        evidence_against=wash(verdict.evidence_against),
        unknown=wash(verdict.unknown),
        also_for=wash(verdict.also_for),
    )
