"""Jobs that were read at the desk become an order for the queue of a place, and stand there once.

The base job and its tree are those of a `Draft`; jobs are made over it, so their paths count as its paths do. The order
is journaled, sent and asked about as a run is (`submit.send_order`): an order without an answer is finished by the same
command, and none of its jobs is there twice.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from holdfast.core.code.copies import shares_tree
from holdfast.core.control_characters import clean
from holdfast.core.digest import sha256_hex
from holdfast.core.job.redact import redact_argv
from holdfast.core.refuse_secrets import find_job_secrets
from holdfast.core.slurm.arrays import TaskPlan
from holdfast.desk.author import name_author
from holdfast.desk.places.facts import read_facts
from holdfast.desk.route.hints import name_place
from holdfast.desk.route.screen import name_zone
from holdfast.host.clock import utc_now
from holdfast.model import wire
from holdfast.model.errors import PlaceError, UsageError
from holdfast.model.ids import clean_name
from holdfast.model.job import JobSpec
from holdfast.model.queue import GroupKind, OrderedJobs, Submission
from holdfast.model.queue_order import QueueOrder, Submitted
from holdfast.model.record import record, replace
from holdfast.model.slurm import SLURM
from holdfast.platforms.slurm.arrays import ShownArray, show_arrays

from .build import PUSH_HINT, find_profile, list_setup
from .journal import OrderKind
from .submit import Asked, send_order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.core.queue.submit_options import SubmitOptions
    from holdfast.model.order import CodeRef
    from holdfast.model.place import BoxFacts, Place
    from holdfast.model.queue import NewJob
    from holdfast.transfer.box import Box
    from holdfast.transfer.code.tree import CodeTree

    from .build import Draft

MOST_NAMED = 10
"""Jobs of which it is said that they are refused."""
TAKEN_WITHIN_S = 300.0
"""How long the box may take: a tree of 2 GiB is hashed there, and 50,000 jobs are committed, on a busy disk."""
CHECKS = (
    "the bundle and the tree are hashed again there, and stay read-only",
    "programs, cards and output paths of all jobs are looked at there, before one is taken",
    "all checks of `holdfast preflight` run there before each job starts",
)


@record
class JobsDraft:
    """Jobs on their way to a queue: the order without its id, and the code that goes along (None: none does)."""

    order: QueueOrder
    sha256: str
    tree: CodeTree | None


@record
class TakenThere(Submitted):
    """What a place took. `fresh` is False when this very order was there already; `total` is how many its group has."""

    place: str
    order_id: str
    fresh: bool
    total: int


@record
class PlannedOrderJob:
    """A job of an order that is not sent; secrets in its command are redacted."""

    job: str
    command: tuple[str, ...]
    params: dict[str, str]
    needs: tuple[str, ...]


@record
class JobsPlan:
    """An order that is not sent; what is known of the box is as in `orders.plan.OrderPlan`.

    `arrays` are what a scheduler would get.
    """

    place: str
    host: str | None
    root: str | None
    group: str
    jobs: tuple[PlannedOrderJob, ...]
    base: JobSpec
    code: CodeRef | None
    shares_tree: bool
    setup: tuple[str, ...]
    checks: tuple[str, ...] = CHECKS
    arrays: tuple[ShownArray, ...] = ()


def draft_jobs(  # noqa: PLR0913 - all that is said of jobs
    draft: Draft,
    jobs: Sequence[NewJob],
    wishes: SubmitOptions,
    place: Place,
    *,
    argv: Sequence[str],
    kind: GroupKind,
    moment: str | None = None,
    source: str | None = None,
    configs: Mapping[str, str] | None = None,
) -> JobsDraft:
    """Jobs over a draft's job as they are ordered at a place, for its queue or its scheduler.

    `moment` is ``--not-before`` as it was typed: said twice, ``+2h`` is the same order. `source` names the file that
    they were made from, `configs` are resolved configurations by file name.

    Raises:
        UsageError: a job holds a secret in what is its own; that of the base job was looked at with the draft.
    """
    problems = list(find_job_secrets(jobs))
    if problems:
        more = [f"and {len(problems) - MOST_NAMED} more"] if len(problems) > MOST_NAMED else []
        raise UsageError("\n".join([*problems[:MOST_NAMED], *more]), hint=PUSH_HINT)
    tree = None if draft.tree is None else draft.tree.ref
    submission = Submission(
        group=wishes.group,
        base=wire.encode(draft.job),
        jobs=tuple(jobs),
        runs_root="",
        cwd="",
        argv=redact_argv(argv)[0],
        by=name_author(),
        at=utc_now(),
        kind=kind,
        max_parallel=wishes.max_parallel,
        if_changed=wishes.if_changed,
        claims=wishes.claims,
        source=source,
        hold_after=wishes.hold_after,
        paused=wishes.paused,
        ordered=OrderedJobs("", "", tree, list_setup(place), shares_tree(tree, len(jobs)), find_profile(place)),
    )
    order = QueueOrder(submission, wishes.named, wishes.shared, dict(configs or {}), place.env_from, place.name)
    if place.kind == SLURM:
        order = replace(order, scheduler=SLURM, native=place.slurm)
    return JobsDraft(order, _hash_order(order, draft.tree_hash, moment), draft.tree)


def _hash_order(order: QueueOrder, tree: str, moment: str | None) -> str:
    """The hash of what is wanted: the same command said again has the same, whenever it is said."""
    of_now = {"argv", "at", "by", "ordered", "jobs"}
    assert order.submission.ordered is not None
    of_place = [order.submission.ordered.setup, order.env_from]
    submission: dict[str, Any] = wire.encode(order.submission)
    asked = {name: value for name, value in submission.items() if name not in of_now}
    jobs = [{**job, "not_before": None} for job in submission["jobs"]]
    whole = [asked, jobs, order.named, order.shared, sorted(order.configs), tree, moment]
    # As without these keys where the place has none: an order that an older holdfast sent is known again.
    whole += [of_place] if of_place != [(), "none"] else []
    whole += [order.scheduler, order.native] if order.scheduler else []
    profile = order.submission.ordered.profile
    whole += [wire.encode(profile)] if profile is not None else []
    return sha256_hex(json.dumps(whole, sort_keys=True).encode())


def plan_jobs(draft: JobsDraft, base: JobSpec, place: Place) -> JobsPlan:
    """What ordering `draft` would do; nothing is sent."""
    submission, facts = draft.order.submission, read_facts(place).facts
    assert submission.ordered is not None
    return JobsPlan(
        place.name,
        place.host,
        place.root if facts is None else facts.root,
        submission.group,
        tuple(
            PlannedOrderJob(job.name, _read_command(base, job), dict(job.params), job.needs) for job in submission.jobs
        ),
        base,
        submission.ordered.code,
        submission.ordered.shares_tree,
        submission.ordered.setup,
        arrays=_plan_arrays(draft.order, facts) if draft.order.scheduler else (),
    )


def _plan_arrays(order: QueueOrder, facts: BoxFacts | None) -> tuple[ShownArray, ...]:
    submission = order.submission
    specs = [wire.decode(JobSpec, {**submission.base, **job.change}) for job in submission.jobs]
    tasks = [TaskPlan(job.name, spec, job.expected_s) for job, spec in zip(submission.jobs, specs, strict=True)]
    return show_arrays(submission.group, tasks, order.native, facts, submission.max_parallel)


def _read_command(base: JobSpec, job: NewJob) -> tuple[str, ...]:
    words = job.change.get("command")
    return redact_argv(tuple(map(str, words)) if isinstance(words, (list, tuple)) else base.command)[0]


def enqueue_draft(draft: JobsDraft, box: Box, *, tell: Callable[[str], None]) -> TakenThere:
    """Have a draft taken by the queue of the box's place, once; `tell` gets words for people meanwhile.

    Raises:
        PlaceError: no answer so far; the same command finishes it.
        HoldfastError: nothing of it was taken.
    """
    submission = draft.order.submission
    assert submission.ordered is not None
    ordered = submission.ordered

    def take(order_id: str, _bundle: str) -> TakenThere:
        named = replace(ordered, order_id=order_id, sha256=draft.sha256)
        order = replace(draft.order, submission=replace(submission, ordered=named))
        root, zone = box.ensure().root, name_zone(os.environ)
        entry, words = ("slurm-sweep", ("--root", root)) if order.scheduler else ("enqueue", ("take", root, zone))
        answer = box.entry(entry, words, stdin=wire.to_bytes(order), limit_s=TAKEN_WITHIN_S)
        return read_taken(answer, order_id, submission.group, box.place.name)

    tree_hash = "" if draft.tree is None else draft.tree.ref.tree
    asked = Asked(OrderKind.JOBS, clean_name(submission.group), draft.sha256, tree_hash, draft.tree)
    return send_order(asked, box, take, run_id=None, tell=tell)


def read_taken(answer: dict[str, Any], order_id: str, group: str, place: str) -> TakenThere:
    """What a box answered to an order of jobs, with its commands as they are typed at this desk.

    Raises:
        PlaceError: it answered something else.
    """
    try:
        taken = answer.get("taken")
        if not isinstance(taken, dict):
            raise wire.WireError("taken: expected an object")
        content = {**taken, "place": place, **{key: answer.get(key) for key in ("order_id", "fresh", "total")}}
        found = wire.decode(TakenThere, _clean(content), "taken")
        if (found.order_id, found.group) != (order_id, group):
            raise wire.WireError(f"taken: it is about {found.order_id[:80]!r}")
    except wire.WireError as error:
        raise PlaceError(
            f"{place} answered something else than what its queue took of {order_id}: {error}",
            hint=f"holdfast place probe {place}",
            details={"place": place, "why": "bad_answer"},
        ) from error
    named = [replace(job, why=name_place(job.why, place)) for job in found.jobs]
    notes, stops = (tuple(name_place(text, place) for text in texts) for texts in (found.notes, found.stops))
    return replace(found, jobs=tuple(named), notes=notes, stops=stops)


def _clean(value: object) -> Any:  # noqa: ANN401 - a JSON value
    """A stranger's text goes to terminals."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return {key: _clean(item) for key, item in value.items()} if isinstance(value, dict) else value
