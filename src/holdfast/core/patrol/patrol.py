"""Judges one run from its evidence: running, finished, dead, stalled, ...; and what needs a person (MON-06).

Two tests that share no evidence (MON-08). The *completion test* (`ENDINGS`) rests on what the run's supervisor has
committed and on whether exactly the recorded processes live; the first row that answers decides. The *alarm test*
(`ALARMS`) rests on progress, samples, disks and cards, as they are now; every row that answers is told. So when one
source is gone, the other test still speaks. No row searches a log: a cumulative log holds old attempts and harmless
words ("mean squared Error 0.1"), and says nothing about now.

Pure: data in, lines out. A row proposes a command and nobody runs it (MON-15). What could not be read is UNKNOWN and
needs a person: absence of evidence is not success.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.core.run.stall import STEPPING
from holdfast.model.record import record
from holdfast.model.scheduler import Phase
from holdfast.model.units import format_bytes, format_count, format_duration

from .evidence import LIMITS, AlarmEvidence, CompletionEvidence, RunStatus, StallLimits

RECENT_S = 24 * 3600.0
"""An end without success needs a person for so long; after that it is history."""
SETTLE_S = 60.0
"""What a run directory may lack for so long while it is being made."""
MEMORY_SHARE = 0.9
"""LIM-09: near the limit, before the kernel kills."""
INODE_SHARE = 0.95
BYTE_SHARE = 0.95
BYTES_ENOUGH = 20 * 1024**3
"""A disk with so much left is not full, however large it is."""
SILENT_SAMPLES = 5.0
"""A supervisor that owes so many samples is not at work, though its process is there."""
IDLE_CARD_PCT = 5
IDLE_CPU_SHARE = 0.05


@record
class PatrolRemark:
    """What a row says of a run: its words, whether a person is needed, and the command that is proposed."""

    row: str
    text: str
    escalate: bool = False
    action: str = ""


@record
class RunJudgement:
    """A run's standing, the line of the completion test, and those of the alarm test."""

    standing: RunStatus
    ending: PatrolRemark
    alarms: tuple[PatrolRemark, ...] = ()

    @property
    def escalate(self) -> bool:
        """Whether a person is needed."""
        return self.ending.escalate or any(alarm.escalate for alarm in self.alarms)

    @property
    def rows(self) -> tuple[str, ...]:
        """The ids of the rows that spoke, for "has this been said before"."""
        return (self.ending.row, *(alarm.row for alarm in self.alarms))


@record
class CompletionRow:
    """One row of the completion test: `when` answers the line's words, or nothing when the row does not apply.

    `{run}` in `action` is the run's id; an empty `action` with a remedy in the evidence proposes that.
    """

    id: str
    standing: RunStatus
    when: Callable[[CompletionEvidence], str]
    escalate: bool = False
    action: str = ""


@record
class AlarmRow:
    """One row of the alarm test; `standing` replaces RUNNING when it answers."""

    id: str
    when: Callable[[AlarmEvidence, StallLimits], str]
    escalate: bool = True
    action: str = ""
    standing: RunStatus | None = None


# ---------------------------------------------------------------------------------------------------- completion test


def _newer(seen: CompletionEvidence) -> str:
    if not seen.newer_schema:
        return ""
    return f"was written by a newer holdfast (schema {seen.newer_schema}), so it cannot be judged"


def _incomplete(seen: CompletionEvidence) -> str:
    return f"its directory is not whole: {seen.incomplete}" if seen.incomplete else ""


def _outside(seen: CompletionEvidence) -> str:
    if not seen.outside or seen.outcome:
        return ""
    return "is outside of this container or job: whether it lives cannot be seen from here"


def _elsewhere(seen: CompletionEvidence) -> str:
    if seen.here or seen.outcome:
        return ""
    return (
        f"was begun on another box or boot (host {seen.host or 'unknown'}): whether it lives cannot be seen from here"
    )


def _scheduled(seen: CompletionEvidence, phase: Phase) -> str:
    """The scheduler's words, where no supervisor here speaks for the run, or where it waits to be begun again."""
    if seen.word is None or seen.word.phase is not phase:
        return ""
    again = phase is Phase.WAITING and seen.outcome not in ("", "succeeded")
    if not again and (seen.outcome or _is_supervised_here(seen)):
        return ""
    return "; ".join(filter(None, (seen.word.evidence, seen.word.advice)))


def _is_supervised_here(seen: CompletionEvidence) -> bool:
    return seen.here and seen.phase != "created" and seen.supervisor is not False


def _queued(seen: CompletionEvidence) -> str:
    return _scheduled(seen, Phase.WAITING)


def _placed(seen: CompletionEvidence) -> str:
    phases = (Phase.RUNNING, Phase.SUSPENDED, Phase.ENDING)
    return next(filter(None, (_scheduled(seen, phase) for phase in phases)), "")


def _unrecorded(seen: CompletionEvidence) -> str:
    said = _scheduled(seen, Phase.OVER)
    return f"{said}; it left no record of its end" if said else ""


def _unheard(seen: CompletionEvidence) -> str:
    if not seen.scheduler or seen.outcome or _is_supervised_here(seen):
        return ""
    return f"{seen.phase}; where it stands {seen.scheduler} did not say"


def _untold(seen: CompletionEvidence) -> str:
    unheard = seen.outcome == "succeeded" and seen.untold and not seen.fast
    return f"succeeded, and nobody was told: {seen.untold}" if unheard else ""


def _succeeded(seen: CompletionEvidence) -> str:
    return f"succeeded: {seen.evidence}" if seen.outcome == "succeeded" and not seen.fast else ""


def _fast(seen: CompletionEvidence) -> str:
    return f"succeeded, but {seen.fast}" if seen.outcome == "succeeded" and seen.fast else ""


def _asked(seen: CompletionEvidence) -> str:
    return f"{seen.outcome}: {seen.evidence}" if seen.outcome in ("stopped", "preempted") else ""


def _refused(seen: CompletionEvidence) -> str:
    return f"refused: {seen.evidence}" if seen.refused else ""


def _failed(seen: CompletionEvidence) -> str:
    if not seen.outcome:
        return ""
    kind = f" ({seen.failure_class})" if seen.failure_class else ""
    return f"{seen.outcome.replace('_', ' ')}{kind}: {seen.evidence}"


def _unreadable(seen: CompletionEvidence) -> str:
    if seen.phase:
        return ""
    return "its state cannot be read: " + ("; ".join(seen.unread) or "there is none")


def _untaken(seen: CompletionEvidence) -> str:
    return "no supervisor took it up" if seen.phase == "created" and seen.supervisor is False else ""


def _asleep(seen: CompletionEvidence) -> str:
    if seen.asleep_pid is None:
        return ""
    return f"its supervisor (pid {seen.asleep_pid}) was stopped by a signal and does nothing"


def _stuck(seen: CompletionEvidence) -> str:
    return f"survived KILL so far: {'; '.join(seen.stuck)}" if seen.stuck and seen.supervisor else ""


def _begins(seen: CompletionEvidence) -> str:
    fresh = seen.supervisor or (seen.phase == "created" and seen.supervisor is None)
    return seen.phase if seen.phase in ("created", "preflight", "waiting") and fresh else ""


def _supervised(seen: CompletionEvidence) -> str:
    return ("finalizing" if seen.phase == "ended" else seen.phase) if seen.supervisor else ""


def _orphan(seen: CompletionEvidence) -> str:
    return "its supervisor is gone, the job lives" if seen.job else ""


def _rebooted(seen: CompletionEvidence) -> str:
    return "the box was restarted while it ran" if seen.rebooted and seen.phase != "ended" else ""


def _unfinished(seen: CompletionEvidence) -> str:
    if seen.supervisor is not False:
        return ""
    if seen.phase == "ended":
        return "its supervisor died before all of its end was written"
    if not seen.status_left:
        return ""
    return "its job has ended, its supervisor is gone, and nobody has written its end"


def _gone(seen: CompletionEvidence) -> str:
    if seen.supervisor is False and seen.job is False:
        return "every process of it is gone and no end was recorded"
    return ""


def _unseen(seen: CompletionEvidence) -> str:
    return f"{seen.phase or 'no state'}; whether its processes live could not be told"


LOOK_THERE = "run the patrol there; if that place is gone for good: holdfast adopt --gone REASON {run}"
ENDINGS: tuple[CompletionRow, ...] = (
    CompletionRow(
        "newer", RunStatus.UNKNOWN, _newer, escalate=True, action="look at it with the holdfast that made it"
    ),
    CompletionRow("incomplete", RunStatus.UNKNOWN, _incomplete, escalate=True, action="holdfast show {run}"),
    CompletionRow("queued", RunStatus.WAITING, _queued),
    CompletionRow("placed", RunStatus.RUNNING, _placed),
    CompletionRow("unrecorded", RunStatus.DEAD, _unrecorded, escalate=True, action="holdfast reconcile"),
    CompletionRow("unheard", RunStatus.UNKNOWN, _unheard, action="holdfast show {run}"),
    CompletionRow("outside", RunStatus.UNKNOWN, _outside, action="run the patrol outside"),
    CompletionRow("elsewhere", RunStatus.UNKNOWN, _elsewhere, action=LOOK_THERE),
    CompletionRow("untold", RunStatus.FINISHED, _untold, escalate=True, action="holdfast show {run}"),
    CompletionRow("succeeded", RunStatus.FINISHED, _succeeded),
    CompletionRow("fast", RunStatus.FINISHED, _fast, escalate=True, action="holdfast show {run}"),
    CompletionRow("asked", RunStatus.FINISHED, _asked),
    CompletionRow("refused", RunStatus.FINISHED, _refused),
    CompletionRow("failed", RunStatus.DEAD, _failed, escalate=True),
    CompletionRow("unreadable", RunStatus.UNKNOWN, _unreadable, escalate=True, action="holdfast show {run}"),
    CompletionRow("untaken", RunStatus.DEAD, _untaken, escalate=True, action="holdfast restart {run}"),
    CompletionRow("asleep", RunStatus.STALLED, _asleep, escalate=True, action="kill -CONT {pid}"),
    CompletionRow("stuck", RunStatus.STALLED, _stuck, escalate=True, action="holdfast diagnose {run}"),
    CompletionRow("begins", RunStatus.WAITING, _begins),
    CompletionRow("running", RunStatus.RUNNING, _supervised),
    CompletionRow("orphan", RunStatus.RUNNING, _orphan, escalate=True, action="holdfast adopt {run}"),
    CompletionRow("rebooted", RunStatus.DEAD, _rebooted, escalate=True, action="holdfast restart {run}"),
    CompletionRow("unfinished", RunStatus.DEAD, _unfinished, escalate=True, action="holdfast reconcile"),
    CompletionRow("gone", RunStatus.DEAD, _gone, escalate=True, action="holdfast restart {run}"),
    CompletionRow("unseen", RunStatus.UNKNOWN, _unseen, escalate=True, action="holdfast show {run}"),
)
"""The completion test: the first row that answers decides. The last one always answers."""
AGING = frozenset({"failed", "fast", "untold"})
"""Rows about an end that is on record: they need a person only while the end is recent."""


# --------------------------------------------------------------------------------------------------------- alarm test


def limit_s(seen: AlarmEvidence, limits: StallLimits) -> float | None:
    """Seconds without progress after which this run stalls; None where the job file turned that off."""
    if seen.stated_limit_s == 0:
        return None
    stepping = seen.progress == "step" and seen.phase.lower() in STEPPING
    learning = not stepping or seen.usual_s is None
    if seen.stated_limit_s is not None:
        first = learning and not (stepping and seen.done)
        limit = max(seen.stated_limit_s, (seen.startup_s or limits.first_s) if first else 0.0)
    elif learning:
        limit = seen.startup_s or limits.first_s
    else:
        assert seen.usual_s is not None
        limit = min(max(seen.usual_s * limits.factor, limits.floor_s), limits.ceiling_s)
    return limit * limits.busy_factor if is_busy(seen) else limit


def is_busy(seen: AlarmEvidence) -> bool:
    """Whether its cards were at work in the last sample."""
    return seen.card_pct is not None and seen.card_pct > IDLE_CARD_PCT


def _stalled(seen: AlarmEvidence, limits: StallLimits) -> str:
    if seen.told:
        return f"its own clock says: {seen.told}"
    limit = limit_s(seen, limits)
    if limit is None or seen.progress_age_s is None or seen.progress_age_s <= limit:
        return ""
    if seen.progress != "step" and not _is_idle(seen):
        # Nothing says how far such a job is; while it works it is slow at most, and what cannot be seen is no stall.
        return ""
    what = "no step" if seen.progress == "step" else "no new output, artifact or checkpoint"
    usual = f" (usual: {format_duration(seen.usual_s)})" if seen.usual_s is not None else ""
    return f"{what} for {format_duration(seen.progress_age_s)}{usual}; {_describe_cards(seen)}"


def _is_idle(seen: AlarmEvidence) -> bool:
    return not is_busy(seen) and seen.cpu_share is not None and seen.cpu_share <= IDLE_CPU_SHARE


def _describe_cards(seen: AlarmEvidence) -> str:
    if not seen.cards:
        return "it has no cards"
    if seen.card_pct is None:
        return "what its cards do could not be read"
    return f"its cards are {'busy' if is_busy(seen) else 'idle'} ({seen.card_pct} %)"


def _silent(seen: AlarmEvidence, _: StallLimits) -> str:
    if seen.sample_age_s is None or seen.sample_every_s is None:
        return ""
    late = seen.sample_age_s > max(SILENT_SAMPLES * seen.sample_every_s, SETTLE_S)
    return f"its supervisor has taken no sample for {format_duration(seen.sample_age_s)}" if late else ""


def _memory(seen: AlarmEvidence, _: StallLimits) -> str:
    if seen.memory_share is None or seen.memory_share < MEMORY_SHARE:
        return ""
    return f"its memory is at {seen.memory_share:.0%} of the limit"


def _oom(seen: AlarmEvidence, _: StallLimits) -> str:
    return f"the kernel killed {seen.oom_kills} of its processes at the memory limit" if seen.oom_kills else ""


def _inodes(seen: AlarmEvidence, _: StallLimits) -> str:
    return "; ".join(
        f"{place.path}: {place.inode_share:.0%} of the inodes are used"
        for place in seen.places
        if place.inode_share is not None and place.inode_share >= INODE_SHARE
    )


def _bytes(seen: AlarmEvidence, _: StallLimits) -> str:
    return "; ".join(
        f"{place.path}: {format_bytes(place.free_bytes)} free, {place.byte_share:.0%} used"
        for place in seen.places
        if place.byte_share is not None and place.byte_share >= BYTE_SHARE and place.free_bytes < BYTES_ENOUGH
    )


def _filling(seen: AlarmEvidence, _: StallLimits) -> str:
    return "; ".join(
        f"{place.path}: full in {format_duration(place.full_in_s)} at this rate"
        for place in seen.places
        if place.full_in_s is not None
    )


def _faults(seen: AlarmEvidence, _: StallLimits) -> str:
    return "; ".join(seen.faults)


def _unread(seen: AlarmEvidence, _: StallLimits) -> str:
    return f"could not be read: {'; '.join(seen.unread)}" if seen.unread else ""


ALARMS: tuple[AlarmRow, ...] = (
    AlarmRow("stalled", _stalled, action="holdfast diagnose {run}", standing=RunStatus.STALLED),
    AlarmRow("silent", _silent, action="holdfast show {run}"),
    AlarmRow("memory", _memory, action="holdfast checkpoint {run}"),
    AlarmRow("oom", _oom, action="holdfast diagnose {run}"),
    AlarmRow("inodes", _inodes, action="df -i; then free what may go"),
    AlarmRow("bytes", _bytes, action="df -h; then free what may go"),
    AlarmRow("filling", _filling, action="df -h; then free what may go"),
    AlarmRow("card", _faults, action="holdfast gpus"),
    AlarmRow("unread", _unread, action="holdfast show {run}"),
)
"""The alarm test: every row that answers is told."""


def judge_run(
    run_id: str, ending: CompletionEvidence, vitals: AlarmEvidence, limits: StallLimits = LIMITS
) -> RunJudgement:
    """Both tests. Alarms are not looked for where the completion test has seen an end: a dead run does not stall."""
    row, text = next((row, text) for row in ENDINGS if (text := row.when(ending)))
    old = row.id in AGING and ending.ended_age_s is not None and ending.ended_age_s > RECENT_S
    action = (row.action or ending.remedy).replace("{run}", run_id).replace("{pid}", str(ending.asleep_pid))
    line = PatrolRemark(row.id, text, row.escalate and not old, action if row.escalate or row.action else "")
    if row.standing in (RunStatus.FINISHED, RunStatus.DEAD, RunStatus.WAITING):
        return RunJudgement(row.standing, line)
    standing: RunStatus = row.standing
    alarms = []
    for alarm in ALARMS:
        said = alarm.when(vitals, limits)
        if not said:
            continue
        alarms.append(PatrolRemark(alarm.id, said, alarm.escalate, alarm.action.replace("{run}", run_id)))
        if alarm.standing is not None and standing is RunStatus.RUNNING:
            standing = alarm.standing
    return RunJudgement(standing, line, tuple(alarms))


def say_unseen(place: str, number: int) -> str:
    """What is to be known of a place that does not answer, where so many runs had not ended."""
    runs = format_count(number, "run")
    return f"{runs} of {place} had not ended when last seen; whether they need a person cannot be told"


def summarise_runs(standings: Iterable[RunStatus]) -> str:
    """One line about all of them: ``12 runs: 9 running, 2 finished, 1 stalled``."""
    counts: dict[RunStatus, int] = dict.fromkeys(RunStatus, 0)
    for standing in standings:
        counts[standing] += 1
    total = sum(counts.values())
    parts = [f"{count} {standing.value}" for standing, count in counts.items() if count]
    return format_count(total, "run") + (f": {', '.join(parts)}" if parts else "")
