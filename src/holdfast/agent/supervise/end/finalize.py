"""The end of an attempt: look at the results, write the exit record, complete the manifest, tell people."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.in_job.device_check import MISMATCH
from holdfast.agent.kept_environment import drop_environment
from holdfast.agent.supervise.start import manifest
from holdfast.agent.view.page.handbook_text import render_handbook
from holdfast.agent.view.retries import is_followed
from holdfast.core.job.redact import redact_text
from holdfast.core.run.events import ResultsChecked, ResultsCopied
from holdfast.core.run.outcome import (
    CAUSE_FINDING,
    GONE_FINDING,
    LIMIT_FINDING,
    MISMATCH_FINDING,
    WITNESSED,
)
from holdfast.host.clock import parse_utc
from holdfast.host.files import files
from holdfast.host.files.secret_files import read_known_values
from holdfast.host.job.output import read_lost_output
from holdfast.model import wire
from holdfast.model.finding import Finding, Level
from holdfast.model.gpu import HolderKind
from holdfast.model.run import Ended, Finalizing, Outcome, State
from holdfast.model.units import format_bytes

from .success import is_doubtful

if TYPE_CHECKING:
    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.agent.supervise.job import JobControl
    from holdfast.agent.supervise.lease.lease import Lease
    from holdfast.agent.supervise.loop import Child
    from holdfast.model.gpu import Inventory
    from holdfast.model.verdict import Verdict

    from .results import ResultsCopy
    from .troubled_end import TroubledEnd

EMPTY_RETRY_S = 0.05
EMPTY_PATIENCE_S = 10.0
"""How long the driver gets to give a dead job's memory back; then the leftover is named and the cards are let go."""
LOOKED_AT_BYTES = 256 * 1024
"""Of the output, from each end: trackers give up where they begin, or where they hand in."""
TRACKER_NAMES = ("wandb", "w&b", "mlflow", "comet", "neptune", "clearml")


class Finalizer:
    """Postflight and the exit record of one attempt."""

    def __init__(self, context: SupervisorContext, job: JobControl, lease: Lease) -> None:
        """Nothing is looked at before `check`."""
        self._context, self._job, self._lease = context, job, lease
        self._child: Child | None = None
        self._findings: tuple[Finding, ...] = ()
        self._usage: dict[str, object] = {}
        self._waited_s = 0.0
        self._exited_well = False
        self._copying: ResultsCopy | None = None
        self._results = None
        if context.spec.results.to is not None:
            # At once: what is loaded late may be of another version.
            from . import results  # lazy: for a run that copies alone

            self._results = results

    def check(self, state: State) -> None:
        """Check the results in a disposable child; a job that never ran has none."""
        assert isinstance(state, Finalizing)
        self._exited_well = state.status is not None and state.status.code == 0
        if state.job is None or state.started_at is None:
            self._finish(())
            return
        spec = self._context.spec
        if self._child is not None:
            self._child.abandon()
        started = parse_utc(state.started_at)
        if not (spec.artifacts or spec.data or spec.expected_s or spec.nodes > 1):
            self._finish(())
            return

        run_dir, attempt = self._context.run_dir, self._context.attempt

        def work() -> object:
            from holdfast.agent.checks.postflight import check_results  # lazy: loaded by this child alone

            return wire.encode(check_results(spec, run_dir, attempt, started_epoch_s=started, status=state.status))

        self._child = self._context.loop.run_child(
            work,
            lambda values: self._finish(tuple(wire.decode(Finding, value) for value in values)),
            lambda why: self._finish((Finding("postflight", Level.UNKNOWN, "results", why, "look at them yourself"),)),
        )

    def _finish(self, findings: tuple[Finding, ...]) -> None:
        self._findings = findings
        self._job.ask_memory(self._look)

    def _look(self, memory_killed: bool) -> None:  # noqa: FBT001 - the answer to a question
        limits = self._look_at_limits() if memory_killed else ()
        ends = (self._look_at_output(), self._look_at_trackers())
        own = (limits, self._look_at_devices(), self._look_at_place(), *ends)
        self._findings = (*self._findings, *(finding for found in own for finding in found))
        self._check_cards()

    def _look_at_limits(self) -> tuple[Finding, ...]:
        """The kernel ended something of the tree because of its memory limit (LIM-01)."""
        limit = self._context.spec.limits.memory_bytes
        asked = "the box's memory" if limit is None else f"the memory limit of {format_bytes(limit)}"
        # The counter may count one kill more than once (mm/memcontrol.c), so its number is not one of processes.
        words = f"{asked} was reached and the kernel killed within its tree"
        return (Finding(LIMIT_FINDING, Level.WARN, "memory", words, "ask for more memory, or use less"),)

    def _look_at_devices(self) -> tuple[Finding, ...]:
        """Whether a login file gave the job other cards than were leased; then the command never ran (LEASE-09)."""
        inside = self._job.read_mismatch()
        if inside:
            hint = "see `container` in the job file and holdfast's docs/containers.md"
            return (Finding(MISMATCH_FINDING, Level.FAIL, "container", f"lease mismatch: {inside}", hint),)
        if not self._context.spec.login_shell:
            return ()

        try:
            words = wire.parse_object(files.read_bytes(self._context.recorder.path(MISMATCH)), MISMATCH).get("message")
        except (OSError, wire.WireError):
            return ()
        remedy = "do not set CUDA_VISIBLE_DEVICES in login files, or leave login_shell out"
        return (Finding(MISMATCH_FINDING, Level.FAIL, "CUDA_VISIBLE_DEVICES", str(words), remedy),)

    def _look_at_output(self) -> tuple[Finding, ...]:
        """Whether the disk refused some of the job's output, which is nowhere else (OBS-11)."""
        context = self._context
        lost = read_lost_output(context.run_id, context.attempt, context.recorder.directory)
        if lost is None:
            return ()
        context.recorder.event("output_lost", **wire.encode(lost))
        remedy = (
            f"see `df {context.run_dir}`: free space there, or have runs elsewhere (--runs, HOLDFAST_RUNS); "
            "what was lost is nowhere else"
        )
        return (Finding("output.lost", Level.WARN, wire.OUTPUT, lost.describe(), remedy),)

    def _look_at_trackers(self) -> tuple[Finding, ...]:
        """Whether a tracker gave up and the job went on: only its output says so (OBS-12)."""
        text = _read_ends(self._context.recorder.path(wire.OUTPUT)) if self._exited_well else ""
        if not any(name in text.lower() for name in TRACKER_NAMES):
            return ()
        from holdfast.diagnosis.logs.trackers import find_given_up  # lazy: where the output names a tracker alone

        line = find_given_up(text)
        if not line:
            return ()
        line = redact_text(line, read_known_values(self._context.spec.secrets))
        self._context.recorder.event("tracker_gave_up", line=line)
        remedy = "give it its credential or set it offline; fill in from the log what was not recorded"
        return (Finding("tracker", Level.WARN, "tracker", f"gave up, and the job went on: {line}", remedy),)

    def _look_at_place(self) -> tuple[Finding, ...]:
        """Whose word it is that the place where it ran is gone."""
        gone = self._context.recorder.read_gone()
        if gone is None:
            return ()
        words = f"{gone.by} said at {gone.at} that its place ({gone.box.host}) is gone: {gone.reason}"
        told = (
            () if gone.cause not in WITNESSED else (Finding(CAUSE_FINDING, Level.PASS, gone.cause.value, gone.reason),)
        )
        return (Finding(GONE_FINDING, Level.WARN, gone.box.host, words), *told)

    def _check_cards(self) -> None:
        """The cards must be empty of our own before they are handed on (POST-04)."""
        inventory = self._lease.read_again()
        left = () if inventory is None else self._find_leftovers(inventory)
        if left and self._waited_s < EMPTY_PATIENCE_S:
            self._waited_s += EMPTY_RETRY_S
            self._context.loop.timers.arm("cards_empty", EMPTY_RETRY_S, self._check_cards)
            return
        if inventory is not None:
            level = Level.WARN if left else Level.PASS
            words = f"still held by {', '.join(left)}" if left else "no process of this run is on its cards"
            remedy = "the driver has not let go; see `holdfast gpus`" if left else ""
            self._findings = (*self._findings, Finding("cards.empty", level, "leased cards", words, remedy))
        self._context.recorder.findings(wire.POSTFLIGHT, self._findings)
        self._context.emit(ResultsChecked(self._findings))

    def copy(self) -> None:
        """Copy the results of a success to where they last; ends in an event, as `end_copy` does."""
        if self._copying is not None:
            return  # a check that answered after its deadline
        self._copying = self._make_copy()
        self._copying.begin()

    def end_copy(self, why: str) -> None:
        """Give the copy up, also one that was about to be begun again."""
        if self._child is not None:
            self._child.abandon()
        (self._copying or self._make_copy()).end(why)

    def _make_copy(self) -> ResultsCopy:
        assert self._results is not None, "only a run that declares it copies"
        made: ResultsCopy = self._results.ResultsCopy(self._context, self._finish_copy)
        return made

    def _finish_copy(self, found: tuple[Finding, ...]) -> None:
        self._findings = (*self._findings, *found)
        self._context.recorder.findings(wire.POSTFLIGHT, self._findings)
        self._context.emit(ResultsCopied(self._findings))

    def _find_leftovers(self, inventory: Inventory) -> tuple[str, ...]:
        """Processes of this run that NVML still lists on its cards; on a card of its own, also dead ones of nobody.

        Such a card was free of ghosts when it was leased, so one that is there now is ours.
        """
        alone, run_id = not self._context.spec.gpu.share, self._context.run_id
        return tuple(
            f"pid {process.pid} on card {card.index}"
            for card in inventory.cards
            if card.uuid in self._lease.leased_cards
            for process in card.processes or ()
            if process.run_id == run_id or (alone and process.kind is HolderKind.GHOST)
        )

    def write(self, ended: Ended) -> None:
        """Notes, manifest, the attempt that follows; the exit record last; then tell people. May be done twice.

        Whoever finds the exit record finds all else that is written about the end.
        """
        context = self._context
        self._usage = self._job.close() or self._usage
        duration_s = None
        if ended.started_at is not None:
            ended_at = ended.status.ended_at if ended.status is not None and ended.status.ended_at else ended.at
            wall_s = max(0.0, parse_utc(ended_at) - parse_utc(ended.started_at))
            duration_s = round(self._job.correct_duration(wall_s, parse_utc(ended_at)), 3)
        inventory = self._lease.inventory
        facts = {
            "ended_at": ended.at,
            "outcome": ended.outcome,
            "exit_code": ended.exit_code,
            "ending": ended.evidence,
            "duration_s": duration_s,
            # The keeper adds the resource usage a moment after the bare status.
            "status": self._job.read_status() or ended.status,
            "usage": self._usage,
            "checkpoints": _list_directory(context.shared(wire.CHECKPOINTS)),
            "artifacts": _list_directory(context.shared(wire.ARTIFACTS)),
        }
        cards = {"cards": inventory.cards, "source": inventory.source, "complete": inventory.complete}
        leased = bool(inventory.cards or context.recorder.read_manifest().get("devices"))
        final = {**cards, "reason": inventory.reason} if leased else {}
        record = {**wire.encode(ended), **wire.encode(facts), "final_cards": wire.encode(final)}
        trouble = self._examine(ended, record)
        verdict = None if trouble is None else trouble.verdict
        record["failure_class"] = None if verdict is None else verdict.kind.value
        manifest.amend_manifest(context, facts)
        self._write_notes(trouble)
        if trouble is not None:
            trouble.follow_up()
        if not is_followed(context.run_dir, context.attempt):
            drop_environment(context.run_id)
        context.recorder.event("exit_recorded", outcome=ended.outcome, exit_code=ended.exit_code)
        context.recorder.commit_exit(record)
        context.recorder.restore()
        self._tell(ended, verdict)
        self._job.remove_container()

    def _examine(self, ended: Ended, record: dict[str, object]) -> TroubledEnd | None:
        """Why it ended, for an end that is no plain success."""
        if ended.outcome is Outcome.SUCCEEDED and not is_doubtful(self._context, self._findings):
            return None
        from .troubled_end import TroubledEnd  # lazy: most runs end well, and none needs it before

        return TroubledEnd(self._context, ended, record)

    def _write_notes(self, trouble: TroubledEnd | None) -> None:
        try:
            if trouble is not None:
                trouble.write_notes(self._findings)
            context = self._context
            handbook = render_handbook(context.run_dir, context.attempt, context.spec).encode("utf-8", "replace")
            files.commit(f"{context.run_dir}/{wire.HANDBOOK}", handbook, durable=False)
        except OSError as error:
            self._context.recorder.log(f"failure note or handbook could not be written: {error}")

    def _tell(self, ended: Ended, verdict: Verdict | None) -> None:
        facts = {"outcome": ended.outcome.value, "exit_code": ended.exit_code, "reason": ended.evidence}
        if verdict is not None:
            judged = {"class": verdict.kind.value, "confidence": verdict.confidence.value, "action": verdict.action}
            facts |= {**judged, "cause": verdict.cause}
        if ended.outcome is Outcome.SUCCEEDED and verdict is not None:
            facts["doubt"] = f"{verdict.kind.value}: {verdict.cause}"
        self._context.notify("ended", **facts)
        if self._context.notifying:
            self._context.notifier.finish()


def _read_ends(path: str) -> str:
    """The beginning and the end of a log; empty when it cannot be read."""
    try:
        data = files.read_beginning(path, LOOKED_AT_BYTES)
        if len(data) >= LOOKED_AT_BYTES:
            # Of a log that is hardly longer, some lines come twice.
            data += b"\n" + files.read_tail(path, LOOKED_AT_BYTES)
    except OSError:
        return ""
    return data.decode("utf-8", "replace")


def _list_directory(path: str) -> list[dict[str, object]]:
    """What lies in a directory: name, bytes, modification time (epoch seconds); the first thousand entries."""
    try:
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)[:1000]
    except OSError:
        return []
    found = []
    for entry in entries:
        try:
            facts = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        found.append({"name": entry.name, "bytes": facts.st_size, "modified": round(facts.st_mtime, 3)})
    return found
