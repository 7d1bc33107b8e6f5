"""Why a run ended, or what a live one is doing: the look behind ``holdfast diagnose``."""

from __future__ import annotations

import os
from collections.abc import Callable

from holdfast.agent.view import observe, run_view
from holdfast.agent.view.retries import read_objection, read_retry, read_wait_s
from holdfast.agent.view.run_view import Presence, RunReach, RunView
from holdfast.core.run.outcome import EXIT_LOST
from holdfast.diagnosis.bundle import ReportBundle, write_bundle
from holdfast.diagnosis.ended import judge
from holdfast.diagnosis.ended.judgement import DetectorAnswer, read_ended
from holdfast.diagnosis.evidence import Reading
from holdfast.diagnosis.live.gather.target import (
    CardNumbers,
    LiveTarget,
    build_card_numbers,
    target_from_pid,
    target_from_run,
)
from holdfast.diagnosis.live.judge import diagnose_live
from holdfast.diagnosis.live.report import Section
from holdfast.host import clock
from holdfast.host.gpu.inventory import read_inventory
from holdfast.host.process import processes
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model import wire
from holdfast.model.errors import NoSuchRun, StorageError
from holdfast.model.identity import ABANDONED, ProcessId, WaitStatus
from holdfast.model.record import record, replace
from holdfast.model.run import Ended, Outcome, Preflight
from holdfast.model.verdict import Clue, Confidence, LiveClass, Verdict

from .container_view import find_inside
from .run_cards import devices_of
from .run_group import open_run_group

LOOKS_FOR_S = 5.0
ANSWERS_WITHIN_S = 5.0


@record
class DiagnosisReport:
    """A diagnosis: of which subject, whether it lives, the verdict (null: a success that nothing speaks against).

    `run_id` and `attempt` are null for a process that is no run's. `failure` and `cause` are the verdict's, empty
    without one; `not_again` says why no attempt followed by itself, where one may or several were asked for. `warnings`
    are what was found at an end besides, and records that cannot be read. Of an end there is the `ladder`, what each
    detector said, and when it was judged. Of a live look there are its `sections`, what it saw (`processes`,
    `threads`), for how long, and what it cost (`wall_s`, `cpu_s`). `bundle` is the archive that was asked for.
    """

    subject: str
    run_id: str | None
    attempt: int | None
    live: bool
    condition: str
    failure: str
    cause: str
    verdict: Verdict | None
    not_again: str | None = None
    warnings: tuple[str, ...] = ()
    judged_at: str | None = None
    ladder: tuple[DetectorAnswer, ...] = ()
    sections: tuple[Section, ...] = ()
    processes: int | None = None
    threads: int | None = None
    window_s: float | None = None
    wall_s: float | None = None
    cpu_s: float | None = None
    deep: bool = False
    bundle: ReportBundle | None = None


def diagnose_pid(pid: int, *, deep: bool, tell: Callable[[str], None]) -> DiagnosisReport:
    """What any process is doing; `tell` hears that it takes some seconds.

    Raises:
        NoSuchRun: there is none of that number.
    """
    target = target_from_pid(pid)
    if target is None:
        raise NoSuchRun(f"there is no process {pid}", hint="ps -ef lists them; holdfast ls lists the runs")
    subject = f"pid {pid}"
    return replace(_look(target, subject, "", None, deep=deep, tell=tell), run_id=None)


def describe_retry(run_dir: str) -> str:
    """That the newest attempt was begun by holdfast itself after a failure, and how to see that failure; else empty."""
    newest = max(observe.list_attempts(run_dir), default=0)
    before = read_retry(run_dir, newest - 1) if newest > 1 else {}
    if not before.get("retry"):
        return ""
    return (
        f"attempt {newest} was begun by holdfast after attempt {newest - 1} ended as {before.get('class')}: "
        f"--attempt {newest - 1} says why"
    )


def find_silence(run_dir: str) -> DiagnosisReport | None:
    """The answer for a run whose records cannot even be asked for, because their mount hangs; None when they answer.

    Tried by a child, which is left to the kernel when it hangs.
    """
    try:
        Offload(lambda: _try_to_observe(run_dir)).wait(ANSWERS_WITHIN_S)
    except OffloadFailed as error:
        clue = Clue(f"all of it: {run_dir}: {error}")
        action = f"see whether the disk or mount of {run_dir} answers (mount, dmesg), and look again when it does"
        verdict = Verdict(LiveClass.UNCLEAR, Confidence.POSSIBLE, action, unknown=(clue,))
        return _build_report(os.path.basename(run_dir), None, "its directory does not answer", verdict)
    return None


def _try_to_observe(run_dir: str) -> bool:
    """Read what `diagnose_run` reads first."""
    try:
        observe.observe_run(run_dir)
    except Exception:  # noqa: BLE001 - only whether it comes back is asked; what is wrong is told by who looks for real
        return False
    return True


def diagnose_run(
    run_dir: str,
    attempt: int | None,
    *,
    deep: bool,
    tell: Callable[[str], None],
    bundle: str | None = None,
    share: bool = False,
) -> DiagnosisReport:
    """Why a run ended, or what it is doing; with `bundle` an archive of the evidence is written there.

    `share`: the archive names neither the box nor its people.

    `tell` hears that a look takes some seconds.

    Raises:
        NoSuchRun: there is no such attempt.
        StorageError: the archive cannot be written.
    """
    answer = _answer(run_dir, attempt, deep=deep, tell=tell)
    return answer if bundle is None else _add_bundle(answer, run_dir, bundle, share=share)


def _answer(run_dir: str, attempt: int | None, *, deep: bool, tell: Callable[[str], None]) -> DiagnosisReport:
    view = observe.observe_run(run_dir)
    if attempt is not None and attempt != view.attempt:
        if attempt not in view.attempts:
            known = ", ".join(map(str, view.attempts)) or "none"
            raise NoSuchRun(f"{view.run_id} has no attempt {attempt}; it has {known}", hint="leave --attempt out")
        view = observe.observe_run(run_dir, attempt=attempt)
    unread = tuple(item.words for item in view.unreadable)
    roots, group_dirs = ((), ()) if view.over or view.reach is not RunReach.HERE else _find_roots(view)
    if roots:
        target = target_from_run(
            view.run_id,
            roots,
            run_dir=view.run_dir,
            attempt_dir=view.attempt_dir,
            group_dirs=group_dirs,
            cards=len(devices_of(view)),
        )
        uuids = frozenset(str(device.get("card_uuid")) for device in devices_of(view))
        found = _look(target, view.run_id, view.condition, view.attempt, deep=deep, tell=tell, uuids=uuids)
        return replace(found, warnings=unread)
    ended = _presume_end(view) if view.vanished else read_ended(view.run_dir, view.attempt)
    if ended is None:
        return _build_report(view.run_id, view.attempt, view.condition, _describe_unstarted(view))
    judgement = judge.examine_attempt(view.run_dir, view.attempt, ended)
    report = _build_report(view.run_id, view.attempt, view.condition, judgement.verdict)
    return replace(
        report,
        not_again=read_objection(view, judgement.verdict),
        warnings=(*ended.warnings, *unread),
        judged_at=judgement.judged_at,
        ladder=judgement.ladder,
    )


def _build_report(run_id: str, attempt: int | None, condition: str, verdict: Verdict | None) -> DiagnosisReport:
    failure, cause = ("", "") if verdict is None else (verdict.kind.value, verdict.cause)
    return DiagnosisReport(run_id, run_id, attempt, False, condition, failure, cause, verdict)


def _presume_end(view: RunView) -> Ended:
    """How a run ended of which nobody is left to write it, as far as it can be seen now; nothing of it is written."""
    try:
        status = wire.decode(WaitStatus, view.status) if view.status else None
    except wire.WireError:
        status = None
    began = getattr(view.state.state, "since", None) if view.state is not None else None
    if status is None or status.source == ABANDONED:
        return Ended(view.observed_at, Outcome.LOST, EXIT_LOST, view.note, started_at=began)
    outcome = Outcome.FAILED if status.exit_code else Outcome.SUCCEEDED
    return Ended(status.ended_at, outcome, status.exit_code, status.describe(), status=status, started_at=began)


def _find_roots(view: RunView) -> tuple[tuple[ProcessId, ...], tuple[str, ...]]:
    """The run's processes that are proven to be its own, and the directories of their control group.

    Those are the leader, those of its group, those with its marker; of a container who is inside, not its client.
    """
    inside, groups = find_inside(view.attempt_dir)
    if inside:
        return inside, groups
    if view.state is None:
        return view.members, ()
    keeper, job = run_view.recorded_processes(view.state.state)
    found = [job] if job is not None and view.job is Presence.ALIVE else []
    group = open_run_group(view)
    for pid in (group.pids() if group is not None else None) or ():
        process = processes.identify(pid)
        if process is not None and process not in (keeper, job):
            found.append(process)
    return tuple(found) or view.members, () if group is None else tuple(group.directories())


def _describe_unstarted(view: RunView) -> Verdict:
    """A run of which nothing runs here and no end is known: it waits, is being started, or is elsewhere."""
    seen = Clue(f"{view.condition}: {view.note}" if view.note else view.condition, wire.STATE, view.observed_at)
    unread = tuple(Clue(f"{item.path}: {item.reason}") for item in view.unreadable)
    if view.reach is not RunReach.HERE or unread:
        where = "outside of this container or job" if view.outside else view.host
        action = f"look from where it runs: {where}" if where else f"see what is left in {view.run_dir}"
        return Verdict(LiveClass.UNCLEAR, Confidence.POSSIBLE, action, (seen,), unknown=unread)
    pause = _find_pause(view)
    action = "wait: nothing of it runs yet" if pause is None else f"wait for it, or end it: holdfast stop {view.run_id}"
    return Verdict(LiveClass.STARTING, Confidence.LIKELY, action, tuple(filter(None, (pause, seen))))


def _find_pause(view: RunView) -> Clue | None:
    """Until when an attempt that nobody asked for pauses before its checks, and why; None where none does."""
    wait_s = read_wait_s(view.run_dir, view.attempt)
    if view.state is None or not isinstance(view.state.state, Preflight) or not wait_s:
        return None
    now_s = clock.epoch_s()
    age_s = clock.find_age(view.state.created_at, now_s)
    if age_s is None or age_s >= wait_s:
        return None
    before = view.attempt - 1
    ended = read_retry(view.run_dir, before).get("class")
    until = f"{clock.format_utc(now_s + wait_s - age_s)[:19]}Z"
    return Clue(
        f"it pauses until {until}, because attempt {before} ended as {ended}: then its checks begin", wire.RETRY
    )


def _look(
    target: LiveTarget,
    subject: str,
    condition: str,
    attempt: int | None,
    *,
    deep: bool,
    tell: Callable[[str], None],
    uuids: frozenset[str] = frozenset(),
) -> DiagnosisReport:
    tell(f"looking at {subject} for {LOOKS_FOR_S:g} s ...")
    report = diagnose_live(target, deep=deep, read_cards=(lambda: _read_cards(target, uuids)) if uuids else None)
    return replace(
        _build_report(subject, attempt, condition, report.verdict),
        live=True,
        sections=report.sections,
        processes=report.processes,
        threads=report.threads,
        window_s=report.window_s,
        wall_s=report.wall_s,
        cpu_s=report.cpu_s,
        deep=report.deep,
    )


def _read_cards(target: LiveTarget, uuids: frozenset[str]) -> Reading[tuple[CardNumbers, ...]]:
    """The leased cards as numbers; unread when one of them did not answer."""
    inventory = read_inventory()
    pids = frozenset(target.list_pids())
    cards = tuple(build_card_numbers(card, pids) for card in inventory.cards if card.uuid in uuids)
    if len(cards) < len(uuids):
        return Reading(unread=inventory.reason or "a leased card did not answer")
    return Reading(cards)


def _add_bundle(answer: DiagnosisReport, run_dir: str, path: str, *, share: bool) -> DiagnosisReport:
    """The answer with its archive written.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        made = write_bundle(path, run_dir, answer.attempt or 0, answer, share=share)
    except FileExistsError as error:
        raise StorageError(f"{path} exists already", hint="give another name; nothing is overwritten") from error
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}", hint="see the directory and its disk") from error
    return replace(answer, bundle=made)
