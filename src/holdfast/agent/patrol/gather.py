"""Gathers the evidence about one run for `core.patrol.patrol`: writes nothing, signals nothing, searches no log.

Everything read here may lie on a mount that hangs, so a patrol calls it in a disposable child (`agent.patrol.watch`).
Processes count only by the identity that the run recorded, or by the run's marker, and never the looker itself: a
patrol that is started from inside a job carries that job's marker (MON-09, B-62).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from holdfast.agent.view import observe
from holdfast.agent.view.live.undelivered import find_untold
from holdfast.agent.view.run_view import Presence, RunReach, RunView
from holdfast.core.patrol.evidence import AlarmEvidence, CompletionEvidence, RunEvidence, StallLimits, learn_pace
from holdfast.core.patrol.patrol import RECENT_S, SETTLE_S, SILENT_SAMPLES
from holdfast.core.run.stall import count_done
from holdfast.diagnosis.ended.judgement import read_judgement
from holdfast.host import clock
from holdfast.host.files import files
from holdfast.host.process import processes
from holdfast.model import wire
from holdfast.model.run import SCHEMA, Finalizing, Running

from .disks import read_places

TAIL_BYTES = 48 * 1024
"""Of the samples: some hundred, so most of an hour at the usual rate."""
RECENT_SAMPLES = 3
"""So many samples say whether cards are at work: one alone may fall between two steps."""
MOST_ENTRIES = 500
LONGEST_CAUSE = 200


def gather_evidence(run_dir: str, limits: StallLimits, ourselves: frozenset[int] = frozenset()) -> RunEvidence:
    """Look at the newest attempt of one run. `ourselves` are pids that must not be taken for the run's."""
    view = observe.observe_run(run_dir)
    members = [member for member in view.members if member.pid not in ourselves]
    alive = Presence.ALIVE in (view.supervisor, view.keeper, view.job) or bool(members)
    ending = _read_ending(view, job=_judge_job(view, bool(members)))
    live = not view.over and view.reach is RunReach.HERE and view.attempt > 0
    vitals = _read_vitals(view, limits) if live else AlarmEvidence()
    return RunEvidence(ending, vitals, view.attempt, alive, _describe_damage(view))


def _describe_damage(view: RunView) -> str:
    """What of the record of its job cannot be read: whoever acts on the run needs it, also after its end."""
    broken = view.find_unreadable(wire.RUN) or view.find_unreadable(wire.JOB)
    return "" if broken is None else broken.words


# ---------------------------------------------------------------------------------------------- the completion test


def _judge_job(view: RunView, members: bool) -> bool | None:  # noqa: FBT001 - the fact itself
    """Whether the job, or its keeper, lives; None where that could not be told."""
    if members or Presence.ALIVE in (view.keeper, view.job):
        return True
    return None if Presence.UNKNOWN in (view.keeper, view.job) or view.state is None else False


def _read_ending(view: RunView, *, job: bool | None) -> CompletionEvidence:
    now, state = clock.epoch_s(), view.state
    outcome = view.condition if view.over else ""
    newer = _newer_schema(view)
    unread = tuple(f"{item.path}: {item.reason}" for item in view.unreadable if not item.path.endswith(wire.HEARTBEAT))
    supervisor = {Presence.ALIVE: True, Presence.GONE: False}.get(view.supervisor)
    end = view.end
    failure_class, cause, remedy = _read_failure(view) if outcome not in ("", "succeeded") else ("", "", "")
    if outcome != "failed" or (end is not None and end.refusal is not None):
        cause = ""  # how it ended says it better: who stopped it, what was refused
    age = clock.find_age(end.at if end is not None else view.exit.get("ended_at"), now)
    return CompletionEvidence(
        phase="" if state is None else type(state.state).__name__.lower(),
        outcome=outcome,
        evidence=cause or (view.note if view.over else ""),
        ended_age_s=age,
        failure_class=failure_class,
        refused=view.was_refused and not view.record.get("queued") and not view.scheduler,
        untold=find_untold(view) if outcome == "succeeded" and age is not None and age <= RECENT_S else "",
        remedy=remedy,
        fast="" if end is None else next((text for text in end.warnings if text.startswith("duration:")), ""),
        here=view.reach is not RunReach.ELSEWHERE,
        outside=view.outside,
        host=view.host,
        supervisor=supervisor,
        asleep_pid=_find_asleep(view),
        job=job,
        rebooted=view.rebooted,
        status_left=bool(view.status),
        stuck=state.state.stuck if state is not None and isinstance(state.state, Finalizing) else (),
        incomplete=_find_gap(view, now),
        newer_schema=newer,
        unread=unread,
        scheduler=view.scheduler,
    )


def _newer_schema(view: RunView) -> int:
    """The schema of a record that this holdfast is too old for; 0 when there is none."""
    found = [record.get("schema") for record in (view.record, view.manifest, view.exit)]
    if view.attempt and not view.over:
        try:
            path = f"{view.attempt_dir}/{wire.STATE}"
            found.append(wire.parse_object(files.read_bytes(path), path).get("schema"))
        except (OSError, wire.WireError):
            # What is wrong with it is said elsewhere.
            pass
    return max((number for number in found if isinstance(number, int) and number > SCHEMA), default=0)


def _find_gap(view: RunView, now: float) -> str:
    """What is missing in a directory that is no longer being made: half copied, or half removed."""
    if view.reach is RunReach.UNREADABLE:
        return ""
    try:
        young = now - os.stat(view.run_dir).st_mtime < SETTLE_S
    except OSError as error:
        return f"{view.run_dir}: {error.strerror}"
    if any(item.path.endswith(f"/{wire.RUN}") and "does not exist" in item.reason for item in view.unreadable):
        return "" if young else f"{wire.RUN} does not exist"
    if view.attempt == 0:
        return "" if young else "it has no attempt"
    named = any(item.path.endswith(f"/{wire.STATE}") for item in view.unreadable)
    if view.state is None and not view.over and not named and not young:
        return f"{wire.ATTEMPTS}/{view.attempt}/{wire.STATE} does not exist"
    return ""


def _find_asleep(view: RunView) -> int | None:
    if not view.supervised or view.state is None or view.state.supervisor is None:
        return None
    stat = processes.read_stat(view.state.supervisor.pid)
    return stat.pid if stat is not None and stat.state in "Tt" else None


def _read_failure(view: RunView) -> tuple[str, str, str]:
    """Class, cause and remedy as they were judged when it ended: of this attempt, never of an earlier one."""
    judgement = read_judgement(view.run_dir, view.attempt)
    if judgement is None or judgement.verdict is None:
        return "", "", "holdfast diagnose {run}"
    verdict = judgement.verdict
    cause = verdict.cause if len(verdict.cause) <= LONGEST_CAUSE else f"{verdict.cause[:LONGEST_CAUSE]}..."
    return verdict.kind.value, cause, verdict.action or "holdfast diagnose {run}"


# --------------------------------------------------------------------------------------------------- the alarm test


def _read_vitals(view: RunView, limits: StallLimits) -> AlarmEvidence:
    damaged = _describe_damage(view)
    now, unread = clock.epoch_s(), [damaged] if damaged else []
    spec = view.spec
    samples: list[tuple[float, dict[str, Any]]] = []
    told = ""
    try:
        samples += _read_samples(f"{view.attempt_dir}/{wire.HEALTH}")
        told = _read_told(f"{view.attempt_dir}/{wire.EVENTS}")
    except OSError as error:
        unread.append(f"{error.filename or view.attempt_dir}: {error.strerror}")
    every = wire.as_number(spec.get("health_every_s"))
    age = max(0.0, now - samples[-1][0]) if samples else _owed_since(view, every, now)
    fresh = bool(samples) and age is not None and age <= max(SILENT_SAMPLES * (every or 30.0), SETTLE_S)
    last = samples[-1][1] if fresh else {}
    cards = len(getattr(view.state.state, "devices", ())) if view.state is not None else 0
    busiest = _busiest(samples[-RECENT_SAMPLES:]) if fresh else None
    if cards and fresh and busiest is None and not _saw_cards(samples[-RECENT_SAMPLES:]):
        unread.append("its cards: the last samples have none")
    progress, progressed_at, usual = _find_progress(view, samples, limits)
    if not progress:
        unread += [f"{item.path}: {item.reason}" for item in view.unreadable if item.path.endswith(wire.HEARTBEAT)]
    places, problems = read_places(view, last)
    stall = spec.get("stall")
    stated: dict[str, Any] = stall if isinstance(stall, dict) else {}
    return AlarmEvidence(
        told=told,
        progress=progress,
        progress_age_s=None if progressed_at is None else max(0.0, now - progressed_at),
        usual_s=usual,
        stated_limit_s=wire.as_number(stated.get("no_progress_s")),
        startup_s=wire.as_number(stated.get("startup_s")),
        phase=str(view.heartbeat.get("phase") or ""),
        step=wire.as_whole(view.heartbeat.get("step")),
        done=count_done(view.heartbeat),
        cards=cards,
        card_pct=busiest,
        cpu_share=_cpu_share(samples[-RECENT_SAMPLES:]) if fresh else None,
        sample_age_s=age,
        sample_every_s=every,
        memory_share=_memory_share(last),
        oom_kills=wire.as_whole(last.get("oom_kills")) or 0,
        faults=tuple(_faults(last)),
        places=places,
        unread=(*unread, *problems),
    )


def _owed_since(view: RunView, every: float | None, now: float) -> float | None:
    """For how long a run without any sample should have had one; None when none is due."""
    state = None if view.state is None else view.state.state
    return clock.find_age(state.since, now) if every and isinstance(state, Running) else None


def _read_samples(path: str) -> Iterator[tuple[float, dict[str, Any]]]:
    """The last samples with their epoch seconds, oldest first; a torn or strange line is left out."""
    for line in files.read_last_lines(path, TAIL_BYTES):
        try:
            sample = json.loads(line)
            yield clock.parse_utc(sample["utc"]), sample
        except (ValueError, KeyError, TypeError, RecursionError):
            continue


def _read_told(path: str) -> str:
    """What the run's own clocks say of a stall that is not over: the last word of each, however many came before."""
    last: dict[object, str] = {}
    for line in files.read_last_lines(path, TAIL_BYTES):
        if not any(word in line for word in (b'"stalled"', b'"recovered"', b'"supervisor_resumed"')):
            continue
        try:
            event = json.loads(line)
            data = event["data"]
            if event["event"] == "supervisor_resumed":
                # Its clocks began anew, so it will not say that what another one called stalled goes on.
                last.clear()
            if event["event"] in ("stalled", "recovered"):
                last[data.get("clock")] = str(data.get("what") or "no progress") if event["event"] == "stalled" else ""
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return "; ".join(words for words in last.values() if words)


def _mark(values: dict[str, Any]) -> tuple[object, ...] | None:
    """What moves while a job gets on; None when it tells no step."""
    if values.get("step") is None:
        return None
    return tuple(str(values.get(name)) for name in ("step", "epoch", "phase", "last_durable_step"))


def _find_progress(
    view: RunView, samples: list[tuple[float, dict[str, Any]]], limits: StallLimits
) -> tuple[str, float | None, float | None]:
    """What shows progress here, when it last moved (epoch seconds), and the longest interval between steps."""
    marks: list[tuple[float, object]] = [(at, _mark(sample)) for at, sample in samples]
    beat = _mark(view.heartbeat)
    beaten_at = _modified(f"{view.attempt_dir}/{wire.HEARTBEAT}")
    if beat is not None and beaten_at is not None and (not marks or marks[-1][1] != beat):
        marks.append((beaten_at, beat))
    moved_at, usual = learn_pace(marks, limits.exempt)
    results = [_newest(f"{view.run_dir}/{name}") for name in (wire.ARTIFACTS, wire.CHECKPOINTS)]
    if moved_at is not None:
        return "step", max(filter(None, [moved_at, *results])), usual
    times = [at for at in [*results, beaten_at, _modified(f"{view.attempt_dir}/{wire.OUTPUT}")] if at is not None]
    return ("files", max(times), None) if times else ("", None, None)


def _modified(path: str) -> float | None:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return None


def _newest(directory: str) -> float | None:
    """When something in a directory was last written, by its first `MOST_ENTRIES` entries; None when it is empty."""
    newest = None
    try:
        with os.scandir(directory) as entries:
            for entry, _ in zip(entries, range(MOST_ENTRIES), strict=False):
                newest = max(newest or 0.0, entry.stat(follow_symlinks=False).st_mtime)
    except OSError:
        return newest
    return newest


def _cards(sample: dict[str, Any]) -> list[dict[str, Any]]:
    cards = sample.get("cards")
    return [card for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []


def _saw_cards(samples: list[tuple[float, dict[str, Any]]]) -> bool:
    return any(_cards(sample) for _, sample in samples)


def _busiest(samples: list[tuple[float, dict[str, Any]]]) -> int | None:
    seen = [wire.as_whole(card.get("utilisation_pct")) for _, sample in samples for card in _cards(sample)]
    return max((use for use in seen if use is not None), default=None)


def _cpu_share(samples: list[tuple[float, dict[str, Any]]]) -> float | None:
    """Cores in use between the first and the last of these samples."""
    if len(samples) < 2:
        return None
    first, last = wire.as_number(samples[0][1].get("cpu_s")), wire.as_number(samples[-1][1].get("cpu_s"))
    passed = samples[-1][0] - samples[0][0]
    return None if first is None or last is None or passed <= 0 else max(0.0, last - first) / passed


def _memory_share(sample: dict[str, Any]) -> float | None:
    """Memory that cannot be given back, as a share of the limit: a file cache fills any limit and does no harm."""
    stated = wire.as_number(sample.get("memory_share"))
    if stated is not None:
        return stated
    used = wire.as_number(sample.get("memory_anon_bytes"))
    used = wire.as_number(sample.get("memory_bytes")) if used is None else used
    limit = wire.as_number(sample.get("memory_limit_bytes"))
    return used / limit if used is not None and limit else None


def _faults(sample: dict[str, Any]) -> Iterator[str]:
    for card in _cards(sample):
        faults = card.get("faults")
        for fault in faults if isinstance(faults, list) else ():
            yield f"card {card.get('index')}: {fault}"[:300]
