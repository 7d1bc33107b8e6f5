"""What must hold before a place, or one run of it, may be given up: each a record with evidence and the next command.

What could not be looked at does not hold. Pure: what was seen comes in (`look`), nothing is asked here.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from holdfast.core.control_characters import clean
from holdfast.model.place import Place
from holdfast.model.receipt import DAMAGED, GRAVE, NOT_WANTED, UNTESTED, Receipt, Tried
from holdfast.model.record import field, record
from holdfast.model.run import CopyState, say_condition
from holdfast.model.teardown import NO_RECORD, Remains

YES, NO, UNKNOWN = "yes", "no", "could not look"
MOST_NAMED = 3
LONGEST_SEEN = 1000
SUCCEEDED = "succeeded"


@record
class Condition:
    """One thing that must hold. `holds` is ``yes``, ``no`` or ``could not look``; `command` is what to do next."""

    name: str
    holds: str
    seen: str
    command: str = ""


@record
class RunAtPlace:
    """A run as the place has just shown it."""

    run_id: str
    condition: str
    ended: bool
    attempt: int | None = None


@record
class Proof:
    """What is at home of a run: its receipt (None: there is none), and why it does not count (empty: it does).

    `unknown`: `problem` says why it could not be told.
    """

    receipt: Receipt | None = None
    problem: str = ""
    unknown: bool = False


@record
class Seen:
    """All that was looked at. A text in `unseen` says why the place, or its queue, gave no answer.

    `runs` are all that the place has, `vanished` those that should be there, are not, and are not proven to be at home;
    `unanswered` are orders that may be one, `queued` is what waits or runs in its queue. `remains` is what is only
    there of a run, `proofs` what is at home, `code` where its code is (absent: nowhere).
    """

    runs: tuple[RunAtPlace, ...] = ()
    unseen: str = ""
    vanished: tuple[str, ...] = ()
    unanswered: tuple[str, ...] = ()
    queued: tuple[str, ...] = ()
    queue_unseen: str = ""
    remains: dict[str, Remains] = field(default_factory=dict)
    remains_unseen: str = ""
    proofs: dict[str, Proof] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)


def judge(
    place: Place, seen: Seen, left: Mapping[str, str], *, whole: bool, verified: Sequence[str] = ()
) -> tuple[Condition, ...]:
    """The conditions, in the order in which they are met best.

    Args:
        place: Whose runs they are.
        seen: What was looked at.
        left: Runs that a person leaves behind, each with the reason.
        whole: The place is ended, not only these runs given up.
        verified: Checkpoints (`name_untried`) of which a person has said that they load.
    """
    if seen.unseen:
        command = f"holdfast place probe {place.name}"
        return (
            Condition(
                "runs", UNKNOWN, f"the place gave no answer, and nothing follows from it: {seen.unseen}", command
            ),
        )
    found = [_judge_live(place, seen)]
    if vanished := [run_id for run_id in seen.vanished if run_id not in left]:
        words = f"was there, and is not any more: {_name_some(vanished)}; its file system may not be mounted"
        leave = f"--leave {vanished[0]} --reason TEXT"
        # Nothing of one run is left to give up; the place is told of it when it ends.
        how = f"have it mounted; what is gone for good: {leave if whole else f'holdfast teardown {place.name} {leave}'}"
        found.append(Condition("vanished runs", NO, words, how))
    if whole:
        found.append(_judge_queue(place, seen))
    ended = [run for run in seen.runs if run.ended and run.run_id not in left]
    of_each_run: dict[str, Callable[[Place, RunAtPlace, Seen], Condition]] = {
        "receipts": _judge_receipt,
        "code": partial(_judge_code, whole=whole),
        "tracker": _judge_tracker,
        "results": _judge_results,
    }
    for what, judge_one in of_each_run.items():
        found += _judge_each(what, ended, lambda run, judge_one=judge_one: judge_one(place, run, seen))  # type: ignore[misc] # a default argument
    for name, untried in name_untried(seen, ended).items():
        held = YES if name in verified else NO
        doubt = "damaged, and accepted as it is" if untried.how == DAMAGED else "of a format that cannot be tried here"
        words = "a person has loaded it" if held == YES else doubt
        run = name.partition("/")[0]
        again = f"{_name_teardown(place, run, whole=whole)} --verified {shlex.quote(name)}"
        command = "" if held == YES else f"load it yourself, then: {again}"
        found.append(Condition(f"checkpoint: {run}", held, f"{untried.path}: {words}: {untried.why}", command))
    for run_id, reason in left.items():
        found.append(Condition(f"left behind: {run_id}", YES, clean(reason)[:LONGEST_SEEN]))
    return tuple(found)


def _name_teardown(place: Place, run_id: str, *, whole: bool) -> str:
    """The command that is typed again, of the place or of the one run."""
    return f"holdfast teardown {place.name if whole else f'{place.name}:{run_id}'}"


def name_untried(seen: Seen, runs: Sequence[RunAtPlace]) -> dict[str, Tried]:
    """The newest checkpoints of these runs that could not be tried, or whose damage was accepted, as RUN/PATH."""
    receipts = [proof.receipt for run in runs if (proof := seen.proofs.get(run.run_id)) is not None]
    return {f"{one.run_id}/{one.untried.path}": one.untried for one in receipts if one is not None and one.untried}


def _judge_live(place: Place, seen: Seen) -> Condition:
    live = [run for run in seen.runs if not run.ended]
    if live:
        first = f"{place.name}:{live[0].run_id}"
        words = _name_some([f"{run.run_id} ({run.condition})" for run in live])
        return Condition(
            "no live run", NO, f"has not ended: {words}", f"holdfast wait {first}  (or: holdfast stop {first})"
        )
    if seen.unanswered:
        return Condition(
            "no live run",
            NO,
            f"sent and without an answer, so that it may be one: {_name_some(seen.unanswered)}",
            f"holdfast reconcile {place.name}  (what is not there after an hour never arrived)",
        )
    return Condition("no live run", YES, f"{_count(len(seen.runs), 'run')}, all ended")


def _judge_queue(place: Place, seen: Seen) -> Condition:
    if seen.queue_unseen:
        return Condition("empty queue", UNKNOWN, seen.queue_unseen, f"holdfast queue ls --on {place.name}")
    if seen.queued:
        return Condition(
            "empty queue", NO, f"waits or runs there: {_name_some(seen.queued)}", f"holdfast queue ls --on {place.name}"
        )
    return Condition("empty queue", YES, "nothing waits")


def _judge_each(
    what: str, runs: Sequence[RunAtPlace], judge_one: Callable[[RunAtPlace], Condition]
) -> Iterator[Condition]:
    """Every run for which it does not hold; one line where it holds for all."""
    judged = [judge_one(run) for run in runs]
    wrong = [each for each in judged if each.holds != YES]
    yield from wrong
    if not wrong:
        words = _name_some([f"{run.run_id}: {each.seen}" for run, each in zip(runs, judged, strict=True)])
        yield Condition(what, YES, words or "no run that needs it")


def _judge_receipt(place: Place, run: RunAtPlace, seen: Seen) -> Condition:
    name, pull = f"receipt: {run.run_id}", f"holdfast pull {place.name}:{run.run_id}"
    proof = seen.proofs.get(run.run_id, Proof())
    receipt = proof.receipt
    if receipt is None:
        return Condition(name, UNKNOWN if proof.unknown else NO, proof.problem or "it was not pulled", pull)
    pull = f"{pull} {shlex.quote(receipt.directory)}"
    if receipt.damaged:
        pull += f"  (what is right as it is: --accept {shlex.quote(receipt.damaged[0].path)})"
    if (wrong := find_fault(receipt, place, run)) or proof.problem:
        return Condition(name, UNKNOWN if proof.unknown and not wrong else NO, wrong or proof.problem, pull)
    left_out = f", {len(receipt.left_out)} left out" if receipt.left_out else ""
    left_out += (
        f", accepted as damaged: {_name_some([one.path for one in receipt.accepted])}" if receipt.accepted else ""
    )
    untested = sum(tried.how == UNTESTED for tried in receipt.tried)
    left_out += f", {_count(untested, 'kind')} of file not load-tested" if untested else ""
    kept = f", checkpoint {receipt.checkpoint} loads" if receipt.checkpoint else ""
    return Condition(name, YES, f"{_count(receipt.files, 'file')} in {receipt.directory}{kept}{left_out}")


def find_fault(receipt: Receipt, place: Place, run: RunAtPlace) -> str:
    """Why a receipt opens no gate by what it says itself."""
    if (receipt.place, receipt.run_id) != (place.name, run.run_id):
        return f"it is of {receipt.place}:{receipt.run_id}"
    if receipt.live:
        return "it was pulled while the run had not ended"
    if receipt.files <= 0:
        return "it is of no file at all"
    if receipt.damaged:
        first = receipt.damaged[0]
        return f"{_count(len(receipt.damaged), 'file')} cannot be used: {first.path}: {first.why}"
    for one in receipt.left_out:
        if one.why.endswith(NOT_WANTED):
            return f"it is of a part of the run: {one.why} ({one.path})"
    if lacking := [one for one in receipt.left_out if one.why.startswith(GRAVE)]:
        words = _name_some([f"{one.path}: {one.why}" for one in lacking])
        return (
            f"not in the copy: {words}; see there who may read it and whether its disk is there, then pull again; "
            f"where it is not needed: --leave {run.run_id} --reason TEXT"
        )
    if run.attempt is not None and receipt.attempt != run.attempt:
        return f"it is of attempt {receipt.attempt}, and the run has {run.attempt}"
    if (
        not receipt.checkpoint
        and receipt.untried is None
        and any(tried.path.startswith("checkpoints/") for tried in receipt.tried)
    ):
        return "the run wrote checkpoints, and none of them was loaded in full"
    return ""


def _judge_code(place: Place, run: RunAtPlace, seen: Seen, *, whole: bool) -> Condition:
    teardown = _name_teardown(place, run.run_id, whole=whole)
    name, remains = f"code: {run.run_id}", seen.remains.get(run.run_id)
    if remains is None:
        return _tell_unseen(name, seen.remains_unseen, place, run)
    if where := seen.code.get(run.run_id, ""):
        return Condition(name, YES, where)
    if not remains.tree and remains.commit and (remains.dirty is False or remains.diff or remains.copies):
        words = ", what differs from it is in the copy of the run" if remains.dirty else ""
        if remains.pushed:
            return Condition(name, YES, f"commit {remains.commit[:12]} is pushed to {remains.pushed}{words}")
        words = f"its commit {remains.commit[:12]} is pushed nowhere, and in no directory that was looked at here"
        return Condition(name, NO, words, f"there: git push   (or: {teardown} --code DIR, with a DIR that has it)")
    if not remains.tree and remains.copies:
        return Condition(name, YES, f"{_count(remains.copies, 'file')} of it are in the copy of the run")
    if remains.problem:
        return _tell_unseen(name, remains.problem, place, run)
    if not remains.tree and not (remains.commit and remains.dirty is False):
        words = "what it ran was not recorded there: no tree, no script, no commit with its difference"
        return Condition(name, NO, words, f"{teardown} --leave {run.run_id} --reason TEXT   (where you have it)")
    code = f"its tree {remains.tree}" if remains.tree else f"its commit {(remains.commit or '')[:12]}"
    command = f"{teardown} --code DIR   (a directory here that has it)"
    return Condition(name, NO, f"{code} is in no directory that was looked at here", command)


def _judge_tracker(place: Place, run: RunAtPlace, seen: Seen) -> Condition:
    name, remains = f"tracker: {run.run_id}", seen.remains.get(run.run_id)
    if remains is None or remains.problem:
        return _tell_unseen(name, seen.remains_unseen if remains is None else remains.problem, place, run)
    if not remains.offline:
        return Condition(name, YES, "nothing is unsent")
    receipt = seen.proofs.get(run.run_id, Proof()).receipt
    inside = f"{remains.run_dir}/"
    only_there = [path for path in remains.offline if receipt is None or not path.startswith(inside)]
    if only_there:
        words = f"not sent to the tracker, and only there: {_name_some(only_there)}"
        synced = shlex.join(["wandb", "sync", *only_there[:MOST_NAMED]])
        return Condition(name, NO, words, f"there: {synced}")
    assert receipt is not None
    return Condition(
        name,
        YES,
        f"{_count(len(remains.offline), 'directory')} not sent, in the copy: wandb sync {receipt.directory}/...",
    )


def _judge_results(place: Place, run: RunAtPlace, seen: Seen) -> Condition:
    name, remains = f"results: {run.run_id}", seen.remains.get(run.run_id)
    if remains is None:
        return _tell_unseen(name, seen.remains_unseen, place, run)
    if not remains.results:
        unread = remains.problem == NO_RECORD
        return _tell_unseen(name, NO_RECORD, place, run) if unread else Condition(name, YES, "it declares none")
    if remains.results_state == CopyState.COPIED.value:
        return Condition(name, YES, f"copied to {remains.results}")
    if not remains.results_state and run.condition != SUCCEEDED:
        return Condition(name, YES, f"it {say_condition(run.condition)}, and only a success has results to copy")
    why = remains.results_problem or remains.results_state or "there is no record of a copy"
    words = f"not proven in {remains.results}: {why}"
    return Condition(name, NO, words, f"holdfast results copy {place.name}:{run.run_id}")


def _tell_unseen(name: str, why: str, place: Place, run: RunAtPlace) -> Condition:
    return Condition(name, UNKNOWN, why or "it was not there any more", f"holdfast show {place.name}:{run.run_id}")


def _name_some(items: Sequence[str]) -> str:
    more = f", and {len(items) - MOST_NAMED} more" if len(items) > MOST_NAMED else ""
    return clean(", ".join(items[:MOST_NAMED]) + more)[:LONGEST_SEEN]


def _count(number: int, what: str) -> str:
    many = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"1 {what}" if number == 1 else f"{number} {many}"
