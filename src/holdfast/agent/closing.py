"""The end of an attempt: look at the results, write the exit record, complete the manifest, tell people."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..core.events import ResultsChecked
from ..core.outcome import LIMIT_FINDING, MISMATCH_FINDING
from ..host import files
from ..host.clock import parse_utc
from ..host.offload import Offload, OffloadFailed
from ..model import wire
from ..model.finding import Finding, Level
from ..model.gpu import HolderKind
from ..model.run import Ended, Finalizing, Outcome, State
from ..model.units import format_bytes

if TYPE_CHECKING:
    from ..diagnosis.ended.judge import Judgement
    from ..model.gpu import Inventory
    from .context import Context
    from .job_control import JobControl
    from .leasing import CardLease

EMPTY_RETRY_S = 0.05
EMPTY_PATIENCE_S = 10.0
"""How long the driver gets to give a dead job's memory back; then the leftover is named and the cards are let go."""


class Closing:
    """Postflight and the exit record of one attempt."""

    def __init__(self, context: Context, job: JobControl, lease: CardLease) -> None:
        """Nothing is looked at before `check`."""
        self._context, self._job, self._lease = context, job, lease
        self._work: Offload | None = None
        self._findings: tuple[Finding, ...] = ()
        self._usage: dict[str, object] = {}
        self._waited_s = 0.0

    def check(self, state: State) -> None:
        """Check the results in a disposable child; a job that never ran has none."""
        assert isinstance(state, Finalizing)
        if state.job is None or state.started_at is None:
            self._finish(())
            return
        spec = self._context.spec
        if self._work is not None:
            self._context.loop.remove(self._work.fileno())
            self._work.abandon()
        started = parse_utc(state.started_at)
        if not (spec.artifacts or spec.data or spec.expected_s):
            self._finish(())
            return
        from .postflight import check_results

        self._work = Offload(
            lambda: wire.encode(
                check_results(
                    spec, self._context.run_dir, self._context.attempt, started_epoch_s=started, status=state.status
                )
            )
        )
        self._context.loop.add(self._work.fileno(), self._take)

    def _take(self) -> None:
        assert self._work is not None
        if not self._work.is_done():
            return
        self._context.loop.remove(self._work.fileno())
        try:
            findings = tuple(wire.decode(Finding, value) for value in self._work.result())
        except OffloadFailed as error:
            findings = (Finding("postflight", Level.UNKNOWN, "results", str(error), "look at them yourself"),)
        self._work = None
        self._finish(findings)

    def _finish(self, findings: tuple[Finding, ...]) -> None:
        self._findings = (*findings, *self._look_at_limits(), *self._look_at_devices())
        self._check_cards()

    def _look_at_limits(self) -> tuple[Finding, ...]:
        """Whether the kernel ended something of the tree because of its memory limit (LIM-01)."""
        kills = self._job.read_usage().get("oom_kills")
        if not isinstance(kills, int) or kills < 1:
            return ()
        limit = self._context.spec.limits.memory_bytes
        asked = "the box's memory" if limit is None else f"the memory limit of {format_bytes(limit)}"
        # The counter may count one kill more than once (mm/memcontrol.c), so its number is not one of processes.
        words = f"{asked} was reached and the kernel killed within its tree"
        return (Finding(LIMIT_FINDING, Level.WARN, "memory", words, "ask for more memory, or use less"),)

    def _look_at_devices(self) -> tuple[Finding, ...]:
        """Whether a login file gave the job other cards than were leased; then the command never ran (LEASE-09)."""
        if not self._context.spec.login_shell:
            return ()
        from .verify import MISMATCH

        try:
            words = wire.parse_object(files.read_bytes(self._context.recorder.path(MISMATCH)), MISMATCH).get("message")
        except (OSError, wire.WireError):
            return ()
        remedy = "do not set CUDA_VISIBLE_DEVICES in login files, or leave login_shell out"
        return (Finding(MISMATCH_FINDING, Level.FAIL, "CUDA_VISIBLE_DEVICES", str(words), remedy),)

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
        """Exit record, completed manifest, failure note, handbook; then tell people. May be done twice."""
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
            "status": context.recorder.read_status() or ended.status,
            "usage": self._usage,
            "checkpoints": _list_directory(context.shared(wire.CHECKPOINTS)),
            "artifacts": _list_directory(context.shared(wire.ARTIFACTS)),
        }
        cards = {"cards": inventory.cards, "source": inventory.source, "complete": inventory.complete}
        leased = bool(inventory.cards or context.recorder.read_manifest().get("devices"))
        final = {**cards, "reason": inventory.reason} if leased else {}
        record = {**wire.encode(ended), **wire.encode(facts), "final_cards": wire.encode(final)}
        judgement = self._judge(ended, record)
        verdict = None if judgement is None else judgement.verdict
        record["failure_class"] = None if verdict is None else verdict.kind.value
        context.recorder.commit(wire.EXIT, wire.to_bytes(record))
        from . import manifest

        manifest.amend(context, **facts)
        self._write_notes(ended, judgement)
        context.recorder.event("exit_recorded", outcome=ended.outcome, exit_code=ended.exit_code)
        context.recorder.restore()
        if verdict is not None and ended.outcome is Outcome.FAILED:
            from .retrying import follow_up

            follow_up(context, ended, verdict)
        self._tell(ended)

    def _judge(self, ended: Ended, record: dict[str, object]) -> Judgement | None:
        """Why it ended, for an end that is no plain success. Before the exit record: what that says never changes."""
        if ended.outcome is Outcome.SUCCEEDED and not self._is_odd():
            return None
        from ..diagnosis.ended.judge import examine

        return examine(self._context.run_dir, self._context.attempt, ended, record=record)

    def _is_odd(self) -> bool:
        """Whether something about a success asks for a second look: too fast, its last step missing, NaN in it."""
        beat = self._context.heartbeat()
        step, planned, nonfinite = (beat.get(name) for name in ("step", "planned_steps", "nonfinite"))
        early = isinstance(step, (int, float)) and isinstance(planned, (int, float)) and step < planned
        fast = any(finding.id == "duration" and finding.level is Level.WARN for finding in self._findings)
        return early or fast or (isinstance(nonfinite, int) and nonfinite > 0)

    def _write_notes(self, ended: Ended, judgement: Judgement | None) -> None:
        from .failure import write_failure, write_verdict
        from .handbook import write_handbook

        try:
            if ended.outcome is not Outcome.SUCCEEDED:
                write_failure(self._context.run_dir, self._context.attempt, ended, self._findings, judgement)
            elif judgement is not None:
                write_verdict(self._context.run_dir, self._context.attempt, judgement)
            write_handbook(self._context.run_dir, self._context.attempt, self._context.spec)
        except OSError as error:
            self._context.recorder.log(f"failure note or handbook could not be written: {error}")

    def _tell(self, ended: Ended) -> None:
        facts = {"outcome": ended.outcome.value, "exit_code": ended.exit_code, "reason": ended.evidence}
        self._context.notify("ended", **facts)
        if self._context.notifying:
            self._context.notifier.finish()


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
