"""What ``holdfast diagnose`` looks at, and how it says what it found."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from holdfast.agent import acting, observe
from holdfast.agent.observe import Presence, Reach
from holdfast.host import cgroups, processes
from holdfast.host.offload import Offload, OffloadFailed
from holdfast.model import wire
from holdfast.model.errors import NoSuchRun, StorageError
from holdfast.model.verdict import Clue, Confidence, LiveClass, Verdict

from .cards import devices_of
from .render import clean, heading, is_terminal, note, pairs

if TYPE_CHECKING:
    from holdfast.agent.observe import RunView
    from holdfast.diagnosis.bundle import Bundle
    from holdfast.diagnosis.evidence import Reading
    from holdfast.diagnosis.live.target import CardFacts, LiveTarget
    from holdfast.model.identity import ProcessId

    from .runs import Found

Facts = dict[str, Any]
LOOKS_FOR_S = 5.0
ANSWERS_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A diagnosis: of which subject, whether it lives, the verdict (None: a success that nothing speaks against).

    `details` is what the verdict came from, as JSON: the ladder of an end, the sections of a live look.
    """

    subject: str
    live: bool
    verdict: Verdict | None
    condition: str = ""
    attempt: int | None = None
    details: Facts = field(default_factory=dict)
    bundle: Bundle | None = None

    def encode(self) -> Facts:
        """The JSON object of ``diagnose --json``."""
        named = {"run_id": self.subject, "attempt": self.attempt} if self.attempt is not None else {}
        return {
            "subject": self.subject,
            **named,
            "live": self.live,
            "condition": self.condition,
            "verdict": self.verdict,
            **self.details,
            "bundle": self.bundle,
        }


def diagnose_pid(pid: int, *, deep: bool) -> Answer:
    """What any process is doing.

    Raises:
        NoSuchRun: there is none of that number.
    """
    from holdfast.diagnosis.live.target import target_from_pid

    target = target_from_pid(pid)
    if target is None:
        raise NoSuchRun(f"there is no process {pid}", hint="ps -ef lists them; holdfast ls lists the runs")
    return _look(target, f"pid {pid}", "", None, deep=deep)


def tell_of_retry(run_dir: str) -> None:
    """Say that the newest attempt was begun by holdfast itself after a failure, and how to see that failure."""
    from holdfast.agent.retrying import read_retry

    newest = max(observe.list_attempts(run_dir), default=0)
    before = read_retry(run_dir, newest - 1) if newest > 1 else {}
    if before.get("retry"):
        note(
            f"attempt {newest} was begun by holdfast after attempt {newest - 1} ended as {before.get('class')}: "
            f"--attempt {newest - 1} says why"
        )


def find_silence(found: Found) -> Answer | None:
    """The answer for a run whose records cannot even be asked for, because their mount hangs; None when they answer.

    Tried by a child, which is left to the kernel when it hangs.
    """
    try:
        Offload(lambda: _try_to_observe(found.run_dir)).wait(ANSWERS_WITHIN_S)
    except OffloadFailed as error:
        clue = Clue(f"all of it: {found.run_dir}: {error}")
        action = f"see whether the disk or mount of {found.run_dir} answers (mount, dmesg), and look again when it does"
        verdict = Verdict(LiveClass.UNCLEAR, Confidence.POSSIBLE, action, unknown=(clue,))
        return Answer(found.run_id, False, verdict, "its directory does not answer")
    return None


def _try_to_observe(run_dir: str) -> bool:
    """Read what `diagnose_run` reads first."""
    try:
        observe.observe(run_dir)
    except Exception:  # noqa: BLE001 - only whether it comes back is asked; what is wrong is told by who looks for real
        return False
    return True


def diagnose_run(found: Found, attempt: int | None, *, deep: bool) -> Answer:
    """Why a run ended, or what it is doing.

    Raises:
        NoSuchRun: there is no such attempt.
    """
    view = acting.settle_and_look(found.run_dir)
    if attempt is not None and attempt != view.attempt:
        if attempt not in view.attempts:
            known = ", ".join(map(str, view.attempts)) or "none"
            raise NoSuchRun(f"{found.run_id} has no attempt {attempt}; it has {known}", hint="leave --attempt out")
        view = observe.observe(found.run_dir, attempt=attempt)
    roots = () if view.ended or view.reach is not Reach.HERE else _find_roots(view)
    if roots:
        from holdfast.diagnosis.live.target import target_from_run

        target = target_from_run(
            view.run_id,
            roots,
            run_dir=view.run_dir,
            attempt_dir=view.attempt_dir,
            group_dirs=_group_dirs(view),
            cards=len(devices_of(view)),
        )
        uuids = frozenset(str(device.get("card_uuid")) for device in devices_of(view))
        return _look(target, view.run_id, view.condition, view.attempt, deep=deep, uuids=uuids)
    from holdfast.diagnosis.ended import judge

    ended = judge.read_ended(view.run_dir, view.attempt)
    if ended is None:
        return Answer(view.run_id, False, _describe_unstarted(view), view.condition, view.attempt)
    judgement = judge.examine(view.run_dir, view.attempt, ended)
    details = {"judged_at": judgement.judged_at, "ladder": wire.encode(judgement.ladder)}
    return Answer(view.run_id, False, judgement.verdict, view.condition, view.attempt, details)


def _find_roots(view: RunView) -> tuple[ProcessId, ...]:
    """The run's processes that are proven to be its own: the leader, those of its group, those with its marker."""
    if view.state is None:
        return view.members
    keeper, job = observe.recorded_processes(view.state.state)
    found = [job] if job is not None and view.job is Presence.ALIVE else []
    group = _open_group(view)
    for pid in (group.pids() if group is not None else None) or ():
        process = processes.identify(pid)
        if process is not None and process not in (keeper, job):
            found.append(process)
    return tuple(found) or view.members


def _open_group(view: RunView) -> cgroups.Group | None:
    facts = view.manifest.get("cgroup")
    if not isinstance(facts, dict):
        return None
    try:
        group = wire.decode(cgroups.Group, facts)
    except wire.WireError:
        return None
    return cgroups.open_group(group.name, group.unified, group.v1, group.controllers)


def _group_dirs(view: RunView) -> tuple[str, ...]:
    group = _open_group(view)
    return () if group is None else tuple(group.directories())


def _describe_unstarted(view: RunView) -> Verdict:
    """A run of which nothing runs here and no end is known: it waits, is being started, or is elsewhere."""
    seen = Clue(f"{view.condition}: {view.note}" if view.note else view.condition, wire.STATE, view.observed_at)
    unread = tuple(Clue(f"{item.path}: {item.reason}") for item in view.unreadable)
    if view.reach is not Reach.HERE or unread:
        action = f"look from where it runs: {view.host}" if view.host else f"see what is left in {view.run_dir}"
        return Verdict(LiveClass.UNCLEAR, Confidence.POSSIBLE, action, (seen,), unknown=unread)
    return Verdict(LiveClass.STARTING, Confidence.LIKELY, "wait: nothing of it runs yet", (seen,))


def _look(
    target: LiveTarget,
    subject: str,
    condition: str,
    attempt: int | None,
    *,
    deep: bool,
    uuids: frozenset[str] = frozenset(),
) -> Answer:
    from holdfast.diagnosis.live.judge import diagnose_live

    if is_terminal(sys.stderr):
        note(f"looking at {subject} for {LOOKS_FOR_S:g} s ...")
    report = diagnose_live(target, deep=deep, read_cards=(lambda: _read_cards(target, uuids)) if uuids else None)
    details = {key: value for key, value in wire.encode(report).items() if key != "verdict"}
    return Answer(subject, True, report.verdict, condition, attempt, details)


def _read_cards(target: LiveTarget, uuids: frozenset[str]) -> Reading[tuple[CardFacts, ...]]:
    """The leased cards as numbers; unread when one of them did not answer."""
    from holdfast.diagnosis.evidence import Reading
    from holdfast.diagnosis.live.target import card_facts
    from holdfast.host.gpus import read_inventory

    inventory = read_inventory()
    pids = frozenset(target.list_pids())
    cards = tuple(card_facts(card, pids) for card in inventory.cards if card.uuid in uuids)
    if len(cards) < len(uuids):
        return Reading(unread=inventory.reason or "a leased card did not answer")
    return Reading(cards)


def add_bundle(answer: Answer, run_dir: str, path: str) -> Answer:
    """The answer with its archive written.

    Raises:
        StorageError: it cannot be written.
    """
    from holdfast.diagnosis.bundle import write_bundle

    try:
        made = write_bundle(path, run_dir, answer.attempt or 0, answer.encode())
    except FileExistsError as error:
        raise StorageError(f"{path} exists already", hint="give another name; nothing is overwritten") from error
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}", hint="see the directory and its disk") from error
    return replace(answer, bundle=made)


def print_answer(answer: Answer) -> None:
    """The verdict for a person, then what it came from."""
    verdict = answer.verdict
    attempt = "" if answer.attempt is None else f", attempt {answer.attempt}"
    if verdict is None:
        print(clean(f"{answer.subject}{attempt}: succeeded; nothing speaks against it"))
    else:
        heading(clean(f"{answer.subject}{attempt}: {verdict.kind.value} ({verdict.confidence.value})"))
        lines: list[tuple[str, object]] = [("state", answer.condition or None)]
        lines += [("cause", None if answer.live else verdict.cause), ("do", verdict.action)]
        lines += [("also", ", ".join(verdict.also) or None)]
        lines += [("retry", None if answer.live else verdict.retry.value)]
        lines += [("explain", f"holdfast explain {gotcha}") for gotcha in verdict.gotchas]
        page = "docs/diagnosis-live.md" if answer.live else "docs/diagnosis.md"
        lines += [("rule", f"{verdict.detector} in {page}" if verdict.detector.strip("-") else None)]
        pairs([(key, value) for key, value in lines if value], indent=2)
        _print_clues("evidence for it", verdict.evidence_for)
        _print_clues("against it, and what it was not", verdict.evidence_against)
        _print_clues("could not be read", verdict.unknown)
    if answer.details.get("sections"):
        print()
    _print_sections(answer.details.get("sections"))
    if answer.bundle is not None:
        heading("archive")
        left = "\n".join(answer.bundle.left_out) or "nothing"
        pairs([("file", answer.bundle.path), ("left out", left)], indent=2)


def _print_clues(title: str, clues: tuple[Clue, ...]) -> None:
    if clues:
        heading(title)
        for clue in clues:
            source = f"  [{clue.place}]" if clue.source else ""
            print(clean(f"  {' '.join(clue.text.split())}{source}"))


def _print_sections(sections: object) -> None:
    """The ordered sections of a live look; one that has nothing to say is left out."""
    for section in sections if isinstance(sections, list) else []:
        lines, unread = section.get("lines") or (), section.get("unread") or ()
        if not lines and not unread:
            continue
        heading(clean(str(section.get("title"))))
        for line in (*lines, *(f"could not be read: {why}" for why in unread)):
            print(clean(f"  {line}"))
