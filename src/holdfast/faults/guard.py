"""The process that makes one fault happen, has it judged, and undoes it: ``python -m holdfast.faults.guard REQUEST``.

It is a session of its own, so that what ends the caller does not end it, and holds the end of a pipe to the caller:
when that closes, it undoes everything and leaves. The report is one JSON object on standard output.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from typing import Any

from holdfast.host.files import files
from holdfast.host.process import libc
from holdfast.model import wire
from holdfast.model.record import replace

from .acts import Actor
from .box import RequesterGone, Sandbox, TookTooLong, encode_line, make_environment, make_places, read_text
from .cards import PretendedCard
from .jobs import write_job
from .proofs import ProofReader
from .spec import Fault, FaultAct, FaultJudgement, FaultReport, Stage
from .stages import StageFailed, Staging
from .table import find_fault

START_S, END_S, TROUBLE_S, DIAGNOSE_S = 40.0, 90.0, 40.0, 60.0


class NoVerdict(Exception):
    """`holdfast diagnose` gave none; the message says what it said."""


class Guard:
    """One fault from its sandbox to its report."""

    def __init__(self, fault: Fault, directory: str, nvml_library: str | None) -> None:
        self._fault, self._directory = fault, directory
        self._card = PretendedCard(directory, nvml_library) if fault.stage is Stage.CARD else None
        extra = self._card.environment() if self._card is not None else {}
        self._box = Sandbox(directory, make_environment(directory, extra), sys.stdin.fileno())
        self._proven: list[str] = []
        self._unproven: list[str] = []
        self._staging: Staging | None = None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._box.stop_waiting())

    def run(self) -> FaultReport:
        """Do it, undo it, report. Nothing of it is left but files of the sandbox."""
        libc.set_child_subreaper()
        began = time.monotonic()
        left: list[int] = []
        try:
            with ExitStack() as undo:
                undo.callback(lambda: left.extend(self._box.end_all()))
                undo.callback(self._box.end_run)
                report = self._make(undo)
        except StageFailed as error:
            report = self._report(FaultJudgement.IMPOSSIBLE, reason=str(error))
        except (TookTooLong, NoVerdict, OSError) as error:
            report = self._report(FaultJudgement.BROKEN, reason=str(error))
        if left:
            report = replace(
                report, judgement=FaultJudgement.BROKEN, reason=f"still there after KILL: {', '.join(map(str, left))}"
            )
        return replace(report, seconds=round(time.monotonic() - began, 2))

    def _make(self, undo: ExitStack) -> FaultReport:
        make_places(self._directory)
        self._staging = Staging(self._fault, self._directory, undo)
        self._staging.prepare()
        if self._card is not None:
            self._card.write(self._fault.card_before)
        proofs = ProofReader(self._fault, self._box)
        self._start()
        self._bring_about()
        if self._fault.live:
            self._wait_for_trouble(proofs)
        else:
            self._box.wait(self._box.has_ended, END_S, "the run's end")
        self._proven, self._unproven = proofs.sort()
        if self._unproven:
            return self._report(FaultJudgement.NOT_REAL, reason=self._last_words())
        return self._judge()

    def _start(self) -> None:
        job = write_job(self._fault, self._directory)
        code, out, err = self._box.call("run", "-d", "--json", "--prove", "0s", job, limit_s=START_S)
        try:
            value = json.loads(out)
            self._box.run_dir, self._box.run_id = value["run_dir"], value["run_id"]
        except (ValueError, KeyError, TypeError):
            raise NoVerdict(f"holdfast run: exit code {code}: {err.strip()[-500:]}") from None

    def _bring_about(self) -> None:
        """What the guard itself does to the run, once that is ready."""
        act = self._fault.act
        if act is FaultAct.NOTHING:
            return
        ready = f"{self._directory}/ready"
        self._box.wait(lambda: os.path.exists(ready) or self._box.has_ended(), START_S, "the run's readiness")
        assert self._staging is not None
        Actor(self._fault, self._box, self._staging, self._card).act()

    def _wait_for_trouble(self, proofs: ProofReader) -> None:
        try:
            self._box.wait(lambda: proofs.all_hold() or self._box.has_ended(), TROUBLE_S, "the trouble")
        except TookTooLong:
            # `sort` tells what is missing.
            return
        self._box.pause(self._fault.settle_s)

    # ------------------------------------------------------------------------------------------------------ judging

    def _judge(self) -> FaultReport:
        if self._fault.prevented:
            return self._report(FaultJudgement.RIGHT, said="prevented", reason=self._fault.prevented)
        began = time.monotonic()
        verdict = self._ask()
        asked_s = round(time.monotonic() - began, 2)
        said = str(verdict.get("kind", ""))
        right = said in [kind.value for kind in self._fault.expects]
        return replace(
            self._report(FaultJudgement.RIGHT if right else FaultJudgement.WRONG, said=said),
            detector=str(verdict.get("detector", "")),
            confidence=str(verdict.get("confidence", "")),
            verdict=verdict,
            verdict_seconds=asked_s,
        )

    def _ask(self) -> dict[str, Any]:
        code, out, err = self._box.call("diagnose", "--json", self._box.run_id, limit_s=DIAGNOSE_S)
        try:
            value = json.loads(out)
        except ValueError:
            value = self._box.read(wire.VERDICT) if hasattr(wire, "VERDICT") else {}
        verdict = _find_verdict(value)
        if not verdict:
            raise NoVerdict(f"holdfast diagnose: exit code {code}: {(err or out).strip()[-500:]}")
        return verdict

    def _report(self, judgement: FaultJudgement, *, said: str = "", reason: str = "") -> FaultReport:
        return FaultReport(
            self._fault.name,
            judgement,
            expected=tuple(kind.value for kind in self._fault.expects) or ("prevented",),
            said=said,
            proven=tuple(self._proven),
            unproven=tuple(self._unproven),
            reason=reason,
        )

    def _last_words(self) -> str:
        record = self._box.read(wire.EXIT)
        ending = str(record.get("ending") or record.get("evidence") or "the run has not ended")
        output = read_text(f"{self._box.attempt_dir}/{wire.OUTPUT}").strip()
        return f"{ending}; the job's last words: {output[-300:]}" if output else ending


def _find_verdict(value: object) -> dict[str, Any]:
    """The object that has a class, at the top or one level below."""
    if not isinstance(value, dict):
        return {}
    for candidate in (value, value.get("verdict"), value.get("report")):
        if isinstance(candidate, dict):
            if "kind" in candidate and "confidence" in candidate:
                return candidate
            inner = candidate.get("verdict")
            if isinstance(inner, dict) and "kind" in inner:
                return inner
    return {}


def main(arguments: list[str]) -> int:
    """``REQUEST`` is a JSON object: `name`, `box`, `nvml_library`, `keep`."""
    request = json.loads(arguments[0])
    # Standard output is the report's alone: nothing that the guard starts writes to it.
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    guard = Guard(find_fault(request["name"]), request["box"], request.get("nvml_library"))
    try:
        report = guard.run()
    except RequesterGone:
        if not request.get("keep"):
            files.remove_tree(request["box"])
        return 1
    with os.fdopen(answer, "w", encoding="utf-8") as out:
        out.write(encode_line(wire.encode(report)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
