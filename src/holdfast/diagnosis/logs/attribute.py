"""From the words of a log to detections: the root before what followed from it, the rank that failed first. Pure.

The order of preference, each step only when those before say nothing:

1. what the last traceback says itself, when a rule knows its last line and it is neither a peer's failure nor passing;
2. the earliest rule that names a cause, unless the job went on after all of them and its own exception ends the output;
3. what the last traceback says, when a run could have survived it elsewhere (a name server, a missing file);
4. the earliest exception that is no peer's failure: the job's own code;
5. the earliest failure of a collective or a peer;
6. a loss that was not finite, several times over (before 4 when the exception itself is about NaN);
7. what a run can survive, when the output ends with it.

Only the last `NEAR_BYTES` of the output are judged so, and the last `FAR_BYTES` where the failure of a peer follows:
other ranks say a lot before all have ended. What was said before was survived: a batch size that was tried and was too
large, a cache that could not be written. When nothing speaks there, the same is done with all of it, and is POSSIBLE
only. Nothing at all: UNKNOWN, with the words that were found. Words alone are never more than LIKELY.
"""

from __future__ import annotations

from ...model.verdict import Clue, Confidence, FailureClass
from ..evidence import Answer, Detection, LogFacts, LogMatch, Reading, Role
from .exceptions import EXCEPTION
from .lines import clean_line
from .patterns import PATTERNS
from .survived import find_last_words

_PASSING = frozenset(pattern.id for pattern in PATTERNS if pattern.passing)
_GOTCHAS = {pattern.id: pattern.gotchas for pattern in PATTERNS}
_PEERS = frozenset({FailureClass.COMMUNICATION})
"""Classes that mostly follow from another rank's end."""
_REPEATED = 3
"""Mixed precision skips a step whose loss is not finite now and then; a run that diverged says it again and again."""
_BY_EXIT = {
    -9: (FailureClass.KILLED, "was killed (signal 9), and its output does not say by whom"),
    -15: (FailureClass.KILLED, "was asked to end (signal 15), and its output does not say by whom"),
    -1: (FailureClass.HANG_UP, "was ended by a hang-up (signal 1)"),
    -11: (FailureClass.NATIVE_CRASH, "crashed in native code (signal 11)"),
    -6: (FailureClass.NATIVE_CRASH, "aborted (signal 6)"),
    -4: (FailureClass.NATIVE_CRASH, "met an illegal instruction (signal 4)"),
    -8: (FailureClass.NATIVE_CRASH, "divided by zero in native code (signal 8)"),
    -7: (FailureClass.SHARED_MEMORY, "met a bus error (signal 7)"),
}
"""Exit codes as torchrun and multiprocessing report them: minus the signal."""
SOURCE = "output.log"
NEAR_BYTES = 64 * 1024
FAR_BYTES = 4 * 1024**2


def judge_log(reading: Reading[LogFacts]) -> tuple[Detection, ...]:
    """What a log speaks for, best first; always at least one detection."""
    facts = reading.value
    if not reading.known or facts is None:
        return (_answer(Answer.UNKNOWN, unknown=(Clue(reading.unread or "the log was not read", SOURCE),)),)
    limits = ((not facts.whole, "not all of the output was kept or looked at"), (facts.binary, "its end is no text"))
    unknown = tuple(Clue(text, facts.path) for applies, text in limits if applies)
    root = find_root(facts)
    found = []
    if root is not None:
        sure = Confidence.LIKELY if _is_near(root, facts) else Confidence.POSSIBLE
        found.append(_detect(root, facts, sure, unknown))
    kinds = {detection.kind for detection in found}
    for match in _others(facts):
        if match.kind is not None and match.kind not in kinds:
            kinds.add(match.kind)
            found.append(_detect(match, facts, Confidence.POSSIBLE, unknown))
    report = _judge_report(facts, unknown) if root is None else None
    if report is not None and report.kind not in kinds:
        found.insert(0, report)
    if found:
        return tuple(found)
    words = tuple(_clue(match, facts) for match in facts.matches[:4])
    return (_answer(Answer.UNKNOWN if unknown else Answer.NO, words, unknown),)


def find_root(facts: LogFacts) -> LogMatch | None:
    """The line that says why, or None; see the module for the order."""
    roots = [match for match in facts.matches if match.role is Role.ROOT]
    near = [match for match in roots if _is_near(match, facts)]
    return _choose(facts, near) or _choose(facts, roots)


def _is_near(match: LogMatch, facts: LogFacts) -> bool:
    behind = facts.size_bytes - match.offset
    if behind <= NEAR_BYTES:
        return True
    return behind <= FAR_BYTES and any(
        other.offset > match.offset and (other.kind in _PEERS or other.role is Role.CASCADE) for other in facts.matches
    )


def _choose(facts: LogFacts, roots: list[LogMatch]) -> LogMatch | None:
    named = [match for match in roots if match.pattern != EXCEPTION]
    causes = [match for match in named if match.pattern not in _PASSING and match.kind not in _PEERS]
    last = _last_words(facts)
    if last is not None and last in causes:
        return last
    if causes:
        return find_last_words(facts, causes) or causes[0]
    if last is not None and last in roots and last.pattern in _PASSING:
        return last
    lossy = _repeated(named)
    if lossy is not None and "nan" in facts.exception.lower():
        return lossy
    peer = next((match for match in roots if match.kind in _PEERS), None)
    return _own_exception(facts, roots) or peer or lossy or _final_line(facts, named)


def _last_words(facts: LogFacts) -> LogMatch | None:
    """What the rules say of the line that the last traceback ends with: the first rule that knows it."""
    raised = [
        match.offset for match in facts.matches if match.pattern == EXCEPTION and match.line == facts.exception[:300]
    ]
    if not raised:
        return None
    return next(match for match in facts.matches if match.offset == raised[-1])


def _own_exception(facts: LogFacts, roots: list[LogMatch]) -> LogMatch | None:
    """The earliest exception that no rule calls a peer's failure, the reported rank's before others."""
    strange = {
        match.offset
        for match in facts.matches
        if match.pattern != EXCEPTION
        and (match.role is not Role.ROOT or match.kind in _PEERS or match.pattern in _PASSING)
    }
    own = [match for match in roots if match.pattern == EXCEPTION and match.offset not in strange]
    own = [match for match in own if match.kind not in _PEERS]
    peers = [match.offset for match in roots if match.kind in _PEERS]
    if own and peers and min(peers) < own[0].offset:
        return None
    rank = _reported_rank(facts)
    return next((match for match in own if match.rank == rank and rank is not None), own[0] if own else None)


def _final_line(facts: LogFacts, named: list[LogMatch]) -> LogMatch | None:
    """What can be survived, in the very last line."""
    text = facts.tail.rstrip().rpartition("\n")[2]
    line = clean_line(text)[1].strip()[:300]
    said = [match for match in named if match.line == line and match.kind is not FailureClass.DIVERGED]
    return next((match for match in said if match.offset == said[-1].offset), None)


def _repeated(named: list[LogMatch]) -> LogMatch | None:
    lossy = [match for match in named if match.kind is FailureClass.DIVERGED]
    return lossy[0] if len(lossy) >= _REPEATED else None


def _others(facts: LogFacts) -> list[LogMatch]:
    """What else was said: causes, then what supports one; what only follows is left out."""
    return sorted(
        (match for match in facts.matches if match.role is not Role.CASCADE),
        key=lambda match: (match.role is not Role.ROOT, match.offset),
    )


def _judge_report(facts: LogFacts, unknown: tuple[Clue, ...]) -> Detection | None:
    """What a launcher's report says of the first rank, when nothing names a cause: how it ended."""
    for match in facts.matches:
        code = match.values.get("exitcode", "")
        known = _BY_EXIT.get(int(code)) if code.removeprefix("-").isdecimal() and len(code) < 6 else None
        if known is not None:
            kind, text = known
            who = "a process" if match.rank is None else f"rank {match.rank}"
            clues = (Clue(f"{who} {text}", facts.path), _clue(match, facts))
            return Detection(
                "log.report", kind, Answer.YES, Confidence.POSSIBLE, clues, unknown=unknown, facts=_facts(match, facts)
            )
    return None


def _reported_rank(facts: LogFacts) -> int | None:
    """The rank that torchrun names as the first to fail."""
    return next((match.rank for match in facts.matches if match.pattern == "elastic.root"), None)


def _detect(match: LogMatch, facts: LogFacts, confidence: Confidence, unknown: tuple[Clue, ...]) -> Detection:
    assert match.kind is not None
    support = tuple(
        _clue(other, facts)
        for other in facts.matches
        if other is not match and other.role is not Role.CASCADE and other.kind is match.kind
    )
    return Detection(
        f"log.{match.pattern}",
        match.kind,
        Answer.YES,
        confidence,
        (_clue(match, facts), *support[:3]),
        unknown=unknown,
        gotchas=_GOTCHAS.get(match.pattern, ()),
        facts=_facts(match, facts),
    )


def _facts(match: LogMatch, facts: LogFacts) -> dict[str, str]:
    rank = match.rank if match.rank is not None else _reported_rank(facts)
    found = {**match.values, "line": match.line}
    if match.remedy:
        found["remedy"] = match.remedy
    if rank is not None:
        found["rank"] = str(rank)
    return found


def _clue(match: LogMatch, facts: LogFacts) -> Clue:
    who = "" if match.rank is None else f"rank {match.rank}: "
    return Clue(f"{who}{match.line}", f"{facts.path}, byte {match.offset}")


def _answer(answer: Answer, words: tuple[Clue, ...] = (), unknown: tuple[Clue, ...] = ()) -> Detection:
    return Detection("log", FailureClass.UNKNOWN, answer, evidence_for=words, unknown=unknown)
