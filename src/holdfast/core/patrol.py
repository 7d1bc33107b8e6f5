"""What one look at a run means: running, waiting, finished, dead, stalled, unknown; and what needs a person (MON-06).

Two tests that share no evidence (MON-08). The *completion test* (`ENDINGS`) rests on what the run's supervisor has
committed and on whether exactly the recorded processes live; the first row that answers decides. The *alarm test*
(`ALARMS`) rests on progress, samples, disks and cards, as they are now; every row that answers is told. So when one
source is gone, the other test still speaks. No row searches a log: a cumulative log holds old attempts and harmless
words ("mean squared Error 0.1"), and says nothing about now.

Pure: data in, lines out. A row proposes a command and nobody runs it (MON-15). What could not be read is UNKNOWN and
needs a person: absence of evidence is not success.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..model.units import format_bytes, format_duration
from .patrol_evidence import LIMITS, Standing
from .stall import STEPPING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .patrol_evidence import Ending, StallLimits, Vitals

RECENT_S = 24 * 3600.0
"""An end without success needs a person for so long; after that it is history."""
SETTLE_S = 60.0
"""What a run directory may lack for so long while it is being made."""
UNTAKEN_S = 120.0
"""After so long a run that no supervisor has taken up is nobody's."""
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


@dataclass(frozen=True, slots=True)
class Line:
    """What a row says of a run: its words, whether a person is needed, and the command that is proposed."""

    row: str
    text: str
    escalate: bool = False
    action: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A run's standing, the line of the completion test, and those of the alarm test."""

    standing: Standing
    ending: Line
    alarms: tuple[Line, ...] = ()

    @property
    def escalate(self) -> bool:
        """Whether a person is needed."""
        return self.ending.escalate or any(alarm.escalate for alarm in self.alarms)

    @property
    def rows(self) -> tuple[str, ...]:
        """The ids of the rows that spoke, for "has this been said before"."""
        return (self.ending.row, *(alarm.row for alarm in self.alarms))


@dataclass(frozen=True, slots=True)
class EndingRow:
    """One row of the completion test: `when` answers the line's words, or nothing when the row does not apply.

    `{run}` in `action` is the run's id; an empty `action` with a remedy in the evidence proposes that.
    """

    id: str
    standing: Standing
    when: Callable[[Ending], str]
    escalate: bool = False
    action: str = ""


@dataclass(frozen=True, slots=True)
class AlarmRow:
    """One row of the alarm test; `standing` replaces RUNNING when it answers."""

    id: str
    when: Callable[[Vitals, StallLimits], str]
    escalate: bool = True
    action: str = ""
    standing: Standing | None = None


# ---------------------------------------------------------------------------------------------------- completion test


def _newer(seen: Ending) -> str:
    if not seen.newer_schema:
        return ""
    return f"was written by a newer holdfast (schema {seen.newer_schema}), so it cannot be judged"


def _incomplete(seen: Ending) -> str:
    return f"its directory is not whole: {seen.incomplete}" if seen.incomplete else ""


def _elsewhere(seen: Ending) -> str:
    if seen.here or seen.outcome:
        return ""
    return f"belongs to host {seen.host or 'unknown'}: whether it lives cannot be seen from here"


def _succeeded(seen: Ending) -> str:
    return f"succeeded: {seen.evidence}" if seen.outcome == "succeeded" and not seen.fast else ""


def _fast(seen: Ending) -> str:
    return f"succeeded, but {seen.fast}" if seen.outcome == "succeeded" and seen.fast else ""


def _asked(seen: Ending) -> str:
    return f"{seen.outcome}: {seen.evidence}" if seen.outcome in ("stopped", "preempted") else ""


def _failed(seen: Ending) -> str:
    if not seen.outcome:
        return ""
    kind = f" ({seen.failure_class})" if seen.failure_class else ""
    return f"{seen.outcome.replace('_', ' ')}{kind}: {seen.evidence}"


def _unreadable(seen: Ending) -> str:
    if seen.phase:
        return ""
    return "its state cannot be read: " + ("; ".join(seen.unread) or "there is none")


def _untaken(seen: Ending) -> str:
    idle = seen.phase == "created" and not seen.supervisor and (seen.phase_age_s or 0) > UNTAKEN_S
    return "no supervisor ever took it up" if idle else ""


def _asleep(seen: Ending) -> str:
    if seen.asleep_pid is None:
        return ""
    return f"its supervisor (pid {seen.asleep_pid}) was stopped by a signal and does nothing"


def _stuck(seen: Ending) -> str:
    return f"survived KILL so far: {'; '.join(seen.stuck)}" if seen.stuck and seen.supervisor else ""


def _begins(seen: Ending) -> str:
    fresh = seen.supervisor or seen.phase == "created"
    return f"{seen.phase}" if seen.phase in ("created", "preflight", "waiting") and fresh else ""


def _supervised(seen: Ending) -> str:
    return seen.phase if seen.supervisor else ""


def _orphan(seen: Ending) -> str:
    return "its supervisor is gone, the job lives" if seen.job else ""


def _rebooted(seen: Ending) -> str:
    return "the box was restarted while it ran" if seen.rebooted else ""


def _unfinished(seen: Ending) -> str:
    if not (seen.status_left and seen.supervisor is False):
        return ""
    return "its job has ended, its supervisor is gone, and nobody has written its end"


def _gone(seen: Ending) -> str:
    if seen.supervisor is False and seen.job is False:
        return "every process of it is gone and no end was recorded"
    return ""


def _unseen(seen: Ending) -> str:
    return f"{seen.phase or 'no state'}; whether its processes live could not be told"


ENDINGS: tuple[EndingRow, ...] = (
    EndingRow("newer", Standing.UNKNOWN, _newer, escalate=True, action="look at it with the holdfast that made it"),
    EndingRow("incomplete", Standing.UNKNOWN, _incomplete, escalate=True, action="holdfast show {run}"),
    EndingRow("elsewhere", Standing.UNKNOWN, _elsewhere, action="run the patrol there"),
    EndingRow("succeeded", Standing.FINISHED, _succeeded),
    EndingRow("fast", Standing.FINISHED, _fast, escalate=True, action="holdfast show {run}"),
    EndingRow("asked", Standing.FINISHED, _asked),
    EndingRow("failed", Standing.DEAD, _failed, escalate=True),
    EndingRow("unreadable", Standing.UNKNOWN, _unreadable, escalate=True, action="holdfast show {run}"),
    EndingRow("untaken", Standing.DEAD, _untaken, escalate=True, action="holdfast restart {run}"),
    EndingRow("asleep", Standing.STALLED, _asleep, escalate=True, action="kill -CONT {pid}"),
    EndingRow("stuck", Standing.STALLED, _stuck, escalate=True, action="holdfast diagnose {run}"),
    EndingRow("begins", Standing.WAITING, _begins),
    EndingRow("running", Standing.RUNNING, _supervised),
    EndingRow("orphan", Standing.RUNNING, _orphan, escalate=True, action="holdfast adopt {run}"),
    EndingRow("rebooted", Standing.DEAD, _rebooted, escalate=True, action="holdfast restart {run}"),
    EndingRow("unfinished", Standing.DEAD, _unfinished, escalate=True, action="holdfast reconcile"),
    EndingRow("gone", Standing.DEAD, _gone, escalate=True, action="holdfast restart {run}"),
    EndingRow("unseen", Standing.UNKNOWN, _unseen, escalate=True, action="holdfast show {run}"),
)
"""The completion test: the first row that answers decides. The last one always answers."""
AGING = frozenset({"failed", "fast"})
"""Rows about an end that is on record: they need a person only while the end is recent."""


# --------------------------------------------------------------------------------------------------------- alarm test


def limit_s(seen: Vitals, limits: StallLimits) -> float | None:
    """Seconds without progress after which this run stalls; None where the job file turned that off."""
    if seen.stated_limit_s == 0:
        return None
    learning = seen.progress != "step" or seen.usual_s is None or seen.phase.lower() not in STEPPING
    if seen.stated_limit_s is not None:
        limit = max(seen.stated_limit_s, (seen.startup_s or limits.first_s) if learning else 0.0)
    elif learning:
        limit = seen.startup_s or limits.first_s
    else:
        assert seen.usual_s is not None
        limit = min(max(seen.usual_s * limits.factor, limits.floor_s), limits.ceiling_s)
    return limit * limits.busy_factor if is_busy(seen) else limit


def is_busy(seen: Vitals) -> bool:
    """Whether its cards were at work in the last sample."""
    return seen.card_pct is not None and seen.card_pct > IDLE_CARD_PCT


def _stalled(seen: Vitals, limits: StallLimits) -> str:
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


def _is_idle(seen: Vitals) -> bool:
    return not is_busy(seen) and seen.cpu_share is not None and seen.cpu_share <= IDLE_CPU_SHARE


def _describe_cards(seen: Vitals) -> str:
    if not seen.cards:
        return "it has no cards"
    if seen.card_pct is None:
        return "what its cards do could not be read"
    return f"its cards are {'busy' if is_busy(seen) else 'idle'} ({seen.card_pct} %)"


def _silent(seen: Vitals, _: StallLimits) -> str:
    if seen.sample_age_s is None or seen.sample_every_s is None:
        return ""
    late = seen.sample_age_s > max(SILENT_SAMPLES * seen.sample_every_s, SETTLE_S)
    return f"its supervisor has taken no sample for {format_duration(seen.sample_age_s)}" if late else ""


def _memory(seen: Vitals, _: StallLimits) -> str:
    if seen.memory_share is None or seen.memory_share < MEMORY_SHARE:
        return ""
    return f"its memory is at {seen.memory_share:.0%} of the limit"


def _oom(seen: Vitals, _: StallLimits) -> str:
    return f"the kernel killed {seen.oom_kills} of its processes at the memory limit" if seen.oom_kills else ""


def _inodes(seen: Vitals, _: StallLimits) -> str:
    return "; ".join(
        f"{place.path}: {place.inode_share:.0%} of the inodes are used"
        for place in seen.places
        if place.inode_share is not None and place.inode_share >= INODE_SHARE
    )


def _bytes(seen: Vitals, _: StallLimits) -> str:
    return "; ".join(
        f"{place.path}: {format_bytes(place.free_bytes)} free, {place.byte_share:.0%} used"
        for place in seen.places
        if place.byte_share is not None and place.byte_share >= BYTE_SHARE and place.free_bytes < BYTES_ENOUGH
    )


def _filling(seen: Vitals, _: StallLimits) -> str:
    return "; ".join(
        f"{place.path}: full in {format_duration(place.full_in_s)} at this rate"
        for place in seen.places
        if place.full_in_s is not None
    )


def _faults(seen: Vitals, _: StallLimits) -> str:
    return "; ".join(seen.faults)


def _unread(seen: Vitals, _: StallLimits) -> str:
    return f"could not be read: {'; '.join(seen.unread)}" if seen.unread else ""


ALARMS: tuple[AlarmRow, ...] = (
    AlarmRow("stalled", _stalled, action="holdfast diagnose {run}", standing=Standing.STALLED),
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


def judge(run_id: str, ending: Ending, vitals: Vitals, limits: StallLimits = LIMITS) -> Judgement:
    """Both tests. Alarms are not looked for where the completion test has seen an end: a dead run does not stall."""
    row, text = next((row, text) for row in ENDINGS if (text := row.when(ending)))
    old = row.id in AGING and ending.ended_age_s is not None and ending.ended_age_s > RECENT_S
    action = (row.action or ending.remedy).replace("{run}", run_id).replace("{pid}", str(ending.asleep_pid))
    line = Line(row.id, text, row.escalate and not old, action if row.escalate or row.action else "")
    if row.standing in (Standing.FINISHED, Standing.DEAD, Standing.WAITING):
        return Judgement(row.standing, line)
    standing: Standing = row.standing
    alarms = []
    for alarm in ALARMS:
        said = alarm.when(vitals, limits)
        if not said:
            continue
        alarms.append(Line(alarm.id, said, alarm.escalate, alarm.action.replace("{run}", run_id)))
        if alarm.standing is not None and standing is Standing.RUNNING:
            standing = alarm.standing
    return Judgement(standing, line, tuple(alarms))


def summarise(standings: Iterable[Standing]) -> str:
    """One line about all of them: ``12 runs: 9 running, 2 finished, 1 stalled``."""
    counts: dict[Standing, int] = dict.fromkeys(Standing, 0)
    for standing in standings:
        counts[standing] += 1
    total = sum(counts.values())
    parts = [f"{count} {standing.value}" for standing, count in counts.items() if count]
    return f"{total} run{'' if total == 1 else 's'}" + (f": {', '.join(parts)}" if parts else "")
