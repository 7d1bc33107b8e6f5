"""The entry ``enqueue``: a `QueueOrder` on standard input becomes jobs of this account's queue, all of them once.

| words | standard input | answer |
|---|---|---|
| ``take ROOT ZONE`` | the order | an `Enqueued`; moments in it are by the clock of `ZONE` (`core.reader`) |
| ``has ORDER_ID...`` | | ``there``: those of the orders that are in the queue |

The file that the queue's journal commits is the lock: it names the order, and whoever brings the same order again gets
what that file brought. So an order may come any number of times, from anywhere, and be cut off at any instant. What is
refused is refused before that file.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from holdfast.agent.control.job.ordered import prepare_job
from holdfast.agent.login_environment import choose_environ
from holdfast.agent.queue.change.start_worker import start_worker
from holdfast.agent.queue.open import look_at_queue, open_queue
from holdfast.agent.queue.submit.hand_in import commit_jobs, describe_taken, find_taken
from holdfast.agent.queue.submit.refuse import check_jobs, hash_files, merge_job
from holdfast.agent.queue.sweep.configs import find_configs, store_configs
from holdfast.agent.view.runs.roots import choose_root
from holdfast.core.job.secret_names import read_uses
from holdfast.core.queue.job_hasher import JobHasher
from holdfast.core.queue.submit_options import SubmitOptions
from holdfast.core.reader import READER
from holdfast.host.files.code.store import FILES, tree_dir, trees_dir
from holdfast.host.files.secret_files import SecretUnusableError, read_secret
from holdfast.model import wire
from holdfast.model.errors import PreflightFailed, StorageError, UsageError
from holdfast.model.ids import is_run_id
from holdfast.model.job import JobSpec
from holdfast.model.pattern import compile_later
from holdfast.model.queue_order import CONFIGS, QUEUE_ORDER_FORMAT, QueueOrder, Submitted
from holdfast.model.record import record, replace
from holdfast.model.sweep import ResolvedConfig
from holdfast.store.paths import queue_directory

from .answer import answer, read_input
from .submit import has_tree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.agent.queue.submit.hand_in import SubmitResult
    from holdfast.model.order import CodeRef
    from holdfast.model.queue import NewJob, Submission
    from holdfast.store.queue.queue import Queue

MOST_ORDER_BYTES = 256 << 20
"""A sweep of 50,000 jobs, the most there are, with 5 KiB each."""
_CONFIG = compile_later(r"([0-9a-f]{32})(\.[a-z]{1,8})")


@record
class Enqueued:
    """An order that the queue has; `fresh`: it was not there before. `total` is how many jobs its group has now."""

    order_id: str
    fresh: bool
    taken: Submitted
    total: int


def main(words: list[str]) -> int:
    """Be the entry ``enqueue``."""
    return answer(lambda: _answer(words))


def _answer(words: list[str]) -> object:
    if words[:1] == ["has"]:
        with look_at_queue() as queue:
            return {"there": [word for word in words[1:] if queue.find_ordered(word) is not None]}
    if words[:1] != ["take"] or len(words) != 3:
        raise UsageError("agent enqueue takes: take ROOT ZONE, or has ORDER_ID...")
    READER.zone = words[2]
    root = os.path.abspath(os.path.expanduser(words[1]))
    return enqueue(read_order(read_input("the order", MOST_ORDER_BYTES)), root, os.environ)


def read_order(content: dict[str, Any]) -> QueueOrder:
    """The order in a JSON object, checked for what nothing later would find.

    Raises:
        UsageError: it is of another version, or is not what it says.
    """
    if content.get("format") != QUEUE_ORDER_FORMAT:
        raise UsageError(f"an order of format {content.get('format')!r}; this holdfast reads {QUEUE_ORDER_FORMAT}")
    try:
        order = wire.decode(QueueOrder, content, "order")
        wire.decode(JobSpec, order.submission.base, "job")
    except wire.WireError as error:
        raise UsageError(f"the order cannot be read: {error}") from error
    ordered = order.submission.ordered
    if ordered is None or not is_run_id(ordered.order_id) or not order.submission.jobs:
        raise UsageError("the order has no id, or no jobs")
    return order


def enqueue(order: QueueOrder, root: str, environ: Mapping[str, str]) -> Enqueued:
    """Take an order, or find what was taken of it; a worker is there afterwards, or it is said why not.

    Raises:
        Taken: its id is another order's.
        HoldfastError: nothing of it was taken.
    """
    ordered = order.submission.ordered
    assert ordered is not None
    shared = tuple(os.path.abspath(os.path.expanduser(path)) for path in order.shared)
    wishes = SubmitOptions(group=order.submission.group, named=order.named, shared=shared)
    notes: list[str] = []
    with open_queue() as queue:
        taken = find_taken(queue, order.submission, wishes)
        fresh = taken is None
        if taken is None:
            chosen = choose_environ(order.env_from, environ)
            submission = prepare(order, wishes, root, chosen, notes)
            taken = commit_jobs(queue, submission, environ=chosen, wishes=wishes, notes=notes)
            notes += _note_other_code(queue, taken, ordered.code)
        else:
            taken = replace(taken, started=start_worker(queue, notes))
            if not taken.jobs:
                notes.append(f"{ordered.order_id} was taken before, and its jobs were cleared from the queue since")
        # So that people who type there find its runs.
        choose_root(root)
        total = sum(queue.counts().get(taken.group, {}).values())
        return Enqueued(ordered.order_id, fresh, describe_taken(queue, taken, notes), total)


def _note_other_code(queue: Queue, taken: SubmitResult, code: CodeRef | None) -> list[str]:
    """That jobs which were there before keep the code that they came with: their hash says nothing of it."""
    if code is None or not taken.known:
        return []
    kept = queue.list_with_other_code(taken.group, code.tree) & {job.name for job in taken.jobs}
    if not kept:
        return []
    which = f"{taken.group}/{min(kept)}" + (f" and {len(kept) - 1} more" if len(kept) > 1 else "")
    return [f"handed in before with other code, which stays theirs: {which}; the code of now runs under another name"]


def prepare(
    order: QueueOrder,
    wishes: SubmitOptions,
    root: str,
    environ: Mapping[str, str],
    notes: list[str],
    *,
    kept: str | None = None,
) -> Submission:
    """What is committed: checked against the tree that was sent, with all that only this box knows.

    `kept` is where the configurations of a sweep lie whose jobs a scheduler starts, on machines with cards of their
    own; None: in the queue, or beside its claims.

    Raises:
        HoldfastError: it cannot work, or something that it needs is not here; nothing was taken.
    """
    submission, ordered = order.submission, order.submission.ordered
    assert ordered is not None
    base = wire.decode(JobSpec, submission.base, "job")
    _refuse_missing_secrets(base, order.place)
    workdir = _find_workdir(root, ordered.code)
    spec = prepare_job(base, ordered.setup, workdir, environ, ordered.profile)
    submission = _name_configs(order, submission, kept or submission.claims)
    submission = replace(submission, runs_root=root, cwd=spec.workdir)
    notes += check_jobs(
        spec,
        submission.jobs,
        environ,
        shared=wishes.shared,
        scheduler=order.scheduler,
        merged=[merge_job(submission, job) for job in submission.jobs],
    )
    return replace(submission, files=_hash_own_files(spec, submission.jobs, root))


def _refuse_missing_secrets(base: JobSpec, place: str) -> None:
    for use in read_uses(base.secrets):
        try:
            read_secret(use.name)
        except SecretUnusableError as error:
            raise PreflightFailed(str(error), hint=f"holdfast secret push {place or 'PLACE'} {use.name}") from None


def _find_workdir(root: str, code: CodeRef | None) -> str:
    """Where the code lies that every run will get; without code, a directory with nothing of the job's in it.

    Raises:
        StorageError: the tree is not here.
    """
    if code is None:
        return queue_directory()
    if not has_tree(root, code):
        raise StorageError(
            f"the code tree {code.tree} is not below {root}, or is damaged",
            hint="the same command from the desk sends it",
            details={"code": "absent"},
        )
    return os.path.normpath(f"{tree_dir(root, code.tree)}/{FILES}/{code.workdir}")


def _name_configs(order: QueueOrder, submission: Submission, kept: str | None) -> Submission:
    """The submission with its resolved configurations stored, and named as they lie here; hashes are made anew.

    Raises:
        UsageError: one is not what its name says.
        NotPermitted, StorageError: as of `store_configs`.
    """
    found = []
    for name, text in order.configs.items():
        match, data = _CONFIG.fullmatch(name), text.encode()
        if match is None or hashlib.sha256(data).hexdigest()[:32] != match[1]:
            raise UsageError(f"the configuration {name!r} is not the one that its name says")
        found.append(ResolvedConfig(match[1], match[2], data))
    store_configs(kept, found)
    place = find_configs(kept)
    hasher = JobHasher(submission.base)
    jobs = []
    for job in submission.jobs:
        change = {key: _rename(value, place) for key, value in job.change.items()} if found else job.change
        jobs.append(replace(job, change=change, sha256=hasher.hash(change)))
    return replace(submission, jobs=tuple(jobs))


def _rename(value: object, place: str) -> object:
    if isinstance(value, str):
        return value.replace(f"{CONFIGS}/", f"{place}/")
    if isinstance(value, list):
        return [_rename(item, place) for item in value]
    if isinstance(value, dict):
        return {key: _rename(item, place) for key, item in value.items()}
    return value


def _hash_own_files(spec: JobSpec, jobs: tuple[NewJob, ...], root: str) -> dict[str, str]:
    """The box's own files, which may change before the start; those of the tree are proven when a run starts."""
    sent = f"{trees_dir(root)}/"
    found = hash_files(spec, jobs)
    return {path: sha256 for path, sha256 in found.items() if path.startswith("/") and not path.startswith(sent)}
