"""Logs of failures and of healthy runs as data, each with what its meaning asks for, and how they are judged here.

`known` was used to write the rules; `unseen` was written before them, by the meaning of each log alone, and is only
counted: a rule that is written for one of its cases makes it worthless. `third` are whole logs, `fourth` what programs
and launchers printed, as it was reported: unseen when they were first counted (docs/diagnosis.md) and used since then.
A case begins with a line
``=== name | exit 1 | want class class | ...``; the first class is right, the others are what an expert would accept.
``repeat ok`` allows an attempt that nobody asked for, ``wait 60`` says how long it has to wait at least, ``hours 9``
how long the run took. ``@steps 20`` stands for lines of progress, ``@trace file.py:function ...`` for a traceback.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from holdfast.core.run.retry import RetryDecision, RetryFacts, RetryStep, decide_retry
from holdfast.diagnosis.ended.evidence import EndedEvidence
from holdfast.diagnosis.ended.judge import judge_evidence
from holdfast.diagnosis.logs.attribute import judge_log
from holdfast.diagnosis.logs.scan import read_log
from holdfast.model.record import field, record, replace
from holdfast.model.verdict import Confidence, FailureClass, Verdict
from tests.diagnosis.ended.making import ended, evidence

HERE = Path(__file__).parent
HEAD = re.compile(r"=== (?P<name>[\w-]+) \| (?P<rest>.*)")
MACRO = re.compile(r"(?P<prefix>.*?)@(?P<kind>steps|trace) (?P<words>.*)")


@record
class Case:
    """One log, how its job ended, and what is right."""

    name: str
    text: str
    code: int = 1
    want: tuple[str, ...] = ()
    repeat: bool = False
    wait_s: float = 0.0
    hours: float = 0.0


@record
class Outcome:
    """What was made of a case."""

    case: Case
    verdict: Verdict | None
    decision: RetryDecision | None
    evidence: EndedEvidence = field(default_factory=evidence)

    @property
    def kind(self) -> str:
        """The class; empty when nothing speaks against the end."""
        return "" if self.verdict is None else self.verdict.kind.value

    @property
    def right(self) -> bool:
        """Whether an expert would accept the class."""
        return self.kind in self.case.want if self.case.want else self.verdict is None

    @property
    def wrong_repeat(self) -> bool:
        """Whether another attempt would begin that must not, or too soon."""
        again = self.decision is not None and self.decision.step is not RetryStep.NOTHING
        return again and (
            not self.case.repeat or (self.decision is not None and self.decision.wait_s < self.case.wait_s)
        )


def read_cases(folder: str) -> tuple[Case, ...]:
    """The cases of ``known``, ``unseen``, ``third`` or ``fourth``, expanded."""
    cases: list[Case] = []
    for path in sorted((HERE / folder).glob("*.txt")):
        lines: list[str] = []
        head: re.Match[str] | None = None
        for line in [*path.read_text(encoding="utf-8").splitlines(), "=== end | exit 0"]:
            begin = HEAD.match(line)
            if begin is None:
                lines.append(line)
                continue
            if head is not None:
                cases.append(_make_case(head, lines))
            head, lines = begin, []
    return tuple(cases)


def _make_case(head: re.Match[str], lines: list[str]) -> Case:
    told = dict(part.strip().partition(" ")[::2] for part in head["rest"].split("|"))
    return Case(
        head["name"],
        "".join(f"{text}\n" for line in lines for text in _expand(line)),
        int(told["exit"]),
        tuple(told.get("want", "").split()),
        "repeat" in told,
        float(told.get("wait", 0)),
        float(told.get("hours", 0)),
    )


def _expand(line: str) -> list[str]:
    macro = MACRO.match(line)
    if macro is None:
        return [line]
    if macro["kind"] == "steps":
        return [
            f"step {number} loss {2.5 / number:.4f} lr 3.0e-04 tok/s 11873"
            for number in range(1, int(macro["words"]) + 1)
        ]
    text = ["Traceback (most recent call last):"]
    for number, place in enumerate(macro["words"].split(), 7):
        path, _, function = place.partition(":")
        text += [f'  File "/srv/{path}", line {number}, in {function}', f"    return {function.strip('<>')}(batch)"]
    return [macro["prefix"] + part for part in text]


def judge_case(case: Case) -> Outcome:
    """The verdict on a case on a box of which everything else could be read and says nothing."""
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/output.log"
        Path(path).write_text(case.text, encoding="utf-8")
        log = read_log(path)
    took_s = case.hours * 3600 or 60.0
    seen = replace(evidence(ended(case.code)), log=log, words=judge_log(log), duration_s=took_s, checkpoint=False)
    verdict, _ = judge_evidence(seen)
    return Outcome(case, verdict, None if verdict is None else _decide(verdict, seen), seen)


def _decide(verdict: Verdict, seen: EndedEvidence) -> RetryDecision | None:
    if not isinstance(verdict.kind, FailureClass):
        return None
    return decide_retry(
        RetryFacts(
            kind=verdict.kind,
            confidence=verdict.confidence,
            used=0,
            allowed=1,
            not_set_aside="" if verdict.cards else "which card is at fault is not known",
            lost_s=0.0 if seen.checkpoint else seen.duration_s or 0.0,
            asked_wait_s=verdict.wait_s,
            measured=verdict.confidence is Confidence.CERTAIN,
        ),
        5.0,
    )


def describe(outcomes: list[Outcome]) -> dict[str, int]:
    """How many were judged right, exactly so, alarmed falsely, and repeated wrongly."""
    failing = [item for item in outcomes if item.case.want]
    healthy = [item for item in outcomes if not item.case.want]
    return {
        "failing": len(failing),
        "right or acceptable": sum(item.right for item in failing),
        "exactly right": sum(item.kind == item.case.want[0] for item in failing),
        "healthy": len(healthy),
        "false alarms": sum(not item.right for item in healthy),
        "wrong repeats": sum(item.wrong_repeat for item in outcomes),
    }
