"""Looks at a place for the gate: its runs, its queue, what is only there, and what is at home of each run.

A place is somebody else's machine: what it answers is bounded and read field by field, and what does not fit is "could
not look", never a pass.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.core.code.manifest import Manifest, parse_manifest
from holdfast.core.control_characters import clean
from holdfast.desk.orders.journal import OrderKind, Step, list_orders, read_journal
from holdfast.desk.receipts import check_copy, check_receipt
from holdfast.desk.runs.answer import clean_text
from holdfast.desk.runs.pending import list_unanswered, may_arrive
from holdfast.desk.runs.poll import PATIENT_S, poll_places
from holdfast.desk.runs.registry import ABSENT, find_damage, read_sightings
from holdfast.host.files.code.store import compare_tree
from holdfast.model import wire
from holdfast.model.errors import HoldfastError
from holdfast.model.place import Place
from holdfast.model.queue import ACTIVE_STATES, WAITING_STATES
from holdfast.model.receipt import Receipt
from holdfast.model.record import replace
from holdfast.model.sighting import Poll
from holdfast.model.teardown import Remains
from holdfast.transport.base import Done, Transport

from .conditions import Proof, RunAtPlace, Seen, find_fault

MOST_RUNS = 4000
LOOK_S = 90.0
QUEUE_S = 30.0
GIT_S = 10.0
NOT_OVER = tuple(sorted(state.value for state in WAITING_STATES | ACTIVE_STATES))
LONGEST = 500


class BoxAccess(Protocol):
    """What of `transfer.box.Box` is used here."""

    transport: Transport

    @property
    def is_met(self) -> bool:
        """As of `BoxAccess`."""
        ...

    def run(self, argv: Sequence[str], *, limit_s: float) -> Done:
        """As of `BoxAccess`."""
        ...

    def entry(self, name: str, words: Sequence[str] = (), *, limit_s: float) -> dict[str, Any]:
        """As of `BoxAccess`."""
        ...


ProveHome = Callable[[Place, str], Proof]
"""What is at home of a run, proven anew: nothing of it was changed since it was pulled."""


def look_at(
    place: Place,
    *,
    open_box: Callable[[Place], BoxAccess],
    prove_home: ProveHome,
    code_at: Sequence[str],
    only: str | None = None,
    left: Sequence[str] = (),
    prove_copy: ProveHome | None = None,
) -> Seen:
    """Everything that the conditions are judged by.

    Proving what is home may take long, and others use the place meanwhile: its runs are looked at once more at last.

    Args:
        place: Where to look.
        open_box: How it is reached.
        prove_home: What is at home of a run.
        code_at: Directories of this machine in which the code of runs may be.
        only: The one run that is concerned; None: all of them, and the queue.
        left: Runs of which nothing is to be kept.
        prove_copy: What is at home of a run that is not there any more; None: by its receipt.
    """
    if only is None and (damage := find_damage(place.name)):  # before a look makes it anew
        return Seen(unseen=f"which runs it had cannot be told: {damage}; `holdfast reconcile {place.name}` mends it")
    poll, why = _poll(place, open_box, only)
    if why:
        return Seen(unseen=why)
    if only is not None and only not in poll.sightings:
        return _see_no_such(place, poll, only)
    box = open_box(place)
    ended = [run.run_id for run in _list_runs(poll) if run.ended and run.run_id not in left]
    seen = _look_at_remains(box, Seen(), ended)
    proofs = {run_id: prove_home(place, run_id) for run_id in ended}
    code = {run_id: _find_code(box, run_id, each, proofs[run_id], code_at) for run_id, each in seen.remains.items()}
    if only is None:
        seen = _look_at_queue(box, seen)
    if ended:
        poll, why = _poll(place, open_box, only)
        if why:
            return Seen(unseen=why)
        if only is not None and only not in poll.sightings:
            return _see_no_such(place, poll, only)
    vanished = _list_vanished(place, poll) if only is None else ()
    of_gone = {run.run_id: (prove_copy or _prove_copy)(place, run.run_id) for run in vanished if run.run_id not in left}
    home = {run.run_id: of_gone[run.run_id] for run in vanished if _is_home(place, run, of_gone.get(run.run_id))}
    return replace(
        seen,
        runs=_list_runs(poll),
        vanished=tuple(run.run_id for run in vanished if run.run_id not in home),
        unanswered=tuple(
            each.run_id
            for each in list_unanswered(place.name)
            if only in (None, each.run_id) and may_arrive(each, place.name)
        ),
        proofs=proofs | home,
        code={run_id: where for run_id, where in code.items() if where},
    )


def _poll(place: Place, open_box: Callable[[Place], BoxAccess], only: str | None) -> tuple[Poll, str]:
    """All runs of a place, or the one, and why that is not all of it (empty: it is)."""
    ids = None if only is None else {place.name: [only]}
    [poll] = poll_places([place], deadline_s=PATIENT_S, open_box=open_box, limit=None if only else MOST_RUNS, ids=ids)
    return poll, _find_gap(poll, only)


def _see_no_such(place: Place, poll: Poll, only: str) -> Seen:
    known = only in {run.run_id for run in _list_vanished(place, poll)}
    return Seen(vanished=(only,)) if known else Seen(unseen=f"{only} is not there")


def _list_runs(poll: Poll) -> tuple[RunAtPlace, ...]:
    return tuple(
        RunAtPlace(each.run_id, each.condition, each.ended, None if each.row is None else each.row.get("attempt"))  # type: ignore[arg-type] # read by `answer.read_row`
        for each in sorted(poll.sightings.values(), key=lambda each: each.run_id)
    )


def _find_gap(poll: Poll, only: str | None) -> str:
    """Why a look has not shown all runs of a place; empty when it has."""
    if poll.unreachable is not None:
        return poll.unreachable
    if poll.missing_roots:
        return f"{', '.join(poll.missing_roots[:3])} cannot be read there"
    if only is not None:
        return ""
    return "" if poll.complete else f"it has more runs than the {len(poll.sightings)} that were listed"


def _list_vanished(place: Place, poll: Poll) -> tuple[RunAtPlace, ...]:
    """Runs of this rent that were seen or taken there, are not there any more, and were not removed by this desk.

    A file system that is not mounted leaves an empty directory behind, which is no place without runs.
    """
    since = "" if place.rent is None else place.rent.since
    orders = list_orders(read_journal(place.name))
    found = {
        run_id: RunAtPlace(run_id, ABSENT, ended=False)
        for run_id, each in orders.items()
        if each.what is OrderKind.RUN and each.step in {Step.TAKEN, Step.FOLLOWED} and each.at >= since
    }
    for seen in read_sightings(place.name):
        if seen.condition == ABSENT and (seen.last_there or seen.seen_at) >= since:
            attempt = None if seen.row is None else seen.row.get("attempt")
            found[seen.run_id] = RunAtPlace(seen.run_id, ABSENT, seen.ended, attempt)  # type: ignore[arg-type] # read by `answer.read_row`
    return tuple(found[run_id] for run_id in sorted(found) if run_id not in poll.sightings)


def _is_home(place: Place, run: RunAtPlace, proof: Proof | None) -> bool:
    """Whether all of a run that is not there any more is proven to be at home, with nothing left to be asked of it."""
    receipt = None if proof is None or proof.problem else proof.receipt
    return receipt is not None and receipt.untried is None and not find_fault(receipt, place, run)


def _look_at_queue(box: BoxAccess, seen: Seen) -> Seen:
    try:
        done = box.run(("queue", "ls", "--json"), limit_s=QUEUE_S)
        queued = read_queue(done)
    except (HoldfastError, wire.WireError) as error:
        return replace(seen, queue_unseen=f"its queue could not be read: {clean(str(error))[:LONGEST]}")
    return replace(seen, queued=queued)


def read_queue(done: Done) -> tuple[str, ...]:
    """The groups with jobs that wait or run, and how many, of what ``holdfast queue ls --json`` has printed.

    Raises:
        WireError: it is no such list.
    """
    try:
        value = json.loads(done.out)
    except (ValueError, RecursionError) as error:
        said = done.err.decode("utf-8", "replace").strip().splitlines() or ["nothing was said"]
        raise wire.WireError(f"exit code {done.code}: {said[-1]}") from error
    if done.code or done.cut or not isinstance(value, dict):
        raise wire.WireError(f"exit code {done.code}, {'cut off' if done.cut else 'no list'}")
    groups = value.get("groups")
    if not isinstance(groups, list):
        raise wire.WireError("it has no groups")
    found = []
    for group in groups:
        counts = group.get("counts") if isinstance(group, dict) else None
        if not isinstance(counts, dict):
            raise wire.WireError("a group of it has no counts")
        at_work = [f"{counts[state]} {state}" for state in NOT_OVER if counts.get(state)]
        found += [clean_text(f"{group.get('name')}: {', '.join(at_work)}", LONGEST)] if at_work else []
    return tuple(found)


def _look_at_remains(box: BoxAccess, seen: Seen, ended: Sequence[str]) -> Seen:
    if not ended:
        return seen
    try:
        answer = box.entry("remains", ended, limit_s=LOOK_S).get("runs")
        if not isinstance(answer, dict):
            raise wire.WireError("it has no runs")
        found = {run_id: wire.decode(Remains, answer[run_id]) for run_id in ended if run_id in answer}
    except (HoldfastError, wire.WireError) as error:
        return replace(seen, remains_unseen=f"its files could not be looked at: {clean(str(error))[:LONGEST]}")
    return replace(seen, remains={run_id: _clean(each) for run_id, each in found.items()})


def _clean(found: Remains) -> Remains:
    """The same without characters that could steer a terminal."""
    return replace(
        found,
        offline=tuple(clean_text(path, LONGEST) for path in found.offline[:100]),
        pushed=clean_text(found.pushed, LONGEST),
        results=clean_text(found.results, LONGEST),
        results_state=clean_text(found.results_state, LONGEST),
        results_problem=clean_text(found.results_problem, LONGEST),
        problem=clean_text(found.problem, LONGEST),
    )


def _find_code(box: BoxAccess, run_id: str, remains: Remains, proof: Proof, code_at: Sequence[str]) -> str:
    """Where on this machine the code is that a run was begun with, in words; empty where it was not found."""
    if remains.commit and (remains.dirty is False or (not remains.tree and (remains.diff or remains.copies))):
        for directory in code_at:
            if where := find_commit(directory, remains.commit):
                return where
    if not remains.tree:
        return ""
    try:
        text = box.entry("remains", ("--tree", remains.tree, run_id), limit_s=LOOK_S).get("manifest")
        manifest = parse_manifest(str(text).encode("utf-8", "surrogateescape"))
    except (HoldfastError, ValueError):
        return ""
    copy = [] if proof.receipt is None else [f"{proof.receipt.directory}/work"]
    for directory in (*copy, *code_at):
        if manifest.tree == remains.tree and _has_tree(directory, manifest):
            return f"tree {remains.tree} is in {directory}"
    return ""


def _has_tree(directory: str, manifest: Manifest) -> bool:
    try:
        return os.path.isdir(directory) and not any(compare_tree(directory, manifest, extras=False))
    except OSError:
        return False


def find_commit(directory: str, commit: str) -> str:
    """Where a commit is that git has in `directory`, in words, and whether a remote has it; empty where it is not."""
    if not commit.isalnum():
        return ""

    def git(*words: str) -> str | None:
        command = ["git", "-C", directory, *words]
        try:
            done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=GIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None

    if git("cat-file", "-e", f"{commit}^{{commit}}") is None:
        return ""
    remotes = (git("branch", "-r", "--contains", commit, "--format", "%(refname:short)") or "").split()
    pushed = f"pushed to {clean(remotes[0])}" if remotes else "pushed nowhere"
    return f"commit {commit[:12]} is in {directory}, {pushed}"


def prove_home(place: Place, run_id: str) -> Proof:
    """What is at home of a run, by its receipt, which is proven anew on both sides."""
    return _prove(place, run_id, check_receipt)


def _prove_copy(place: Place, run_id: str) -> Proof:
    return _prove(place, run_id, check_copy)


def _prove(place: Place, run_id: str, check: Callable[[str, str], tuple[Receipt | None, str]]) -> Proof:
    try:
        receipt, problem = check(place.name, run_id)
    except HoldfastError as error:
        return Proof(problem=f"whether it is home cannot be told: {clean(str(error))[:LONGEST]}", unknown=True)
    return Proof(receipt, problem)
