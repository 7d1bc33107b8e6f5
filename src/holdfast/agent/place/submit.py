"""The entry ``submit``: an `Order` on standard input becomes exactly one run on this box (docs/places.md).

Words: ``--root DIR`` (the runs root; without it what the command line here would choose), ``--prove SECONDS`` (wait
until the job has lived for so long). Answers ``{"run": RunRef, "started": ..., "problem": ...}``.

The rename of the whole run directory is the lock. Whoever finds the run there finishes what is missing: nothing but its
supervisor can be. So the same order may come any number of times, from anywhere, and be cut off at any instant.
`problem` is what went wrong after the run was taken: an error that is answered instead says that there is no run.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from holdfast.agent.control.create import OrderedRun, RunExists, create_run
from holdfast.agent.control.job.ordered import lay_out, prepare_job
from holdfast.agent.launch import start_supervisor
from holdfast.agent.login_environment import choose_environ
from holdfast.agent.plan.profile import find_variables
from holdfast.agent.prestart import PRESTARTED
from holdfast.agent.view.live.start import FIRST_ATTEMPT, Started, prove_start, read_progress
from holdfast.agent.view.observe import list_attempts
from holdfast.agent.view.runs.roots import choose_root
from holdfast.core.job.job_hash import hash_job
from holdfast.core.refuse_secrets import refuse_secrets
from holdfast.host.files import files
from holdfast.host.files.code.store import is_whole, tree_dir
from holdfast.host.files.secret_files import SecretUnusableError, read_secret
from holdfast.host.formats.own_bundle import note_use
from holdfast.host.process.wait import wait_briefly
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, PreflightFailed, StorageError, Taken, UsageError
from holdfast.model.ids import is_run_id
from holdfast.model.order import ORDER_FORMAT, Order, RunRef
from holdfast.model.origin import RunOrigin
from holdfast.model.record import record
from holdfast.store.paths import default_root

from .answer import answer, describe_error, read_input

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.job import JobSpec
    from holdfast.model.order import CodeRef

WORK = "work"
"""The empty working directory of a run without code."""
TAKE_UP_S = 3.0
"""How long a run that was made by another call is given to get its supervisor before it is started from here."""


@record
class Call:
    """What the words of the entry ask for. `prove_s` None: do not wait for the start."""

    root: str | None = None
    prove_s: float | None = None


@record
class CarriedOut:
    """A run that an order became, its proven start when that was asked for, and what went wrong once it was there."""

    ref: RunRef
    started: Started | None = None
    problem: HoldfastError | None = None


def main(words: list[str]) -> int:
    """Be the entry ``submit``."""
    # It loads while the order is read and the run is made.
    PRESTARTED.start()
    return answer(lambda: _submit(words))


def _submit(words: list[str]) -> dict[str, object]:
    call = read_words(words)
    order = read_order(read_input("the order"))
    done = carry_out(order, call.root, choose_environ(order.env_from, os.environ), prove_s=call.prove_s)
    problem = None if done.problem is None else describe_error(done.problem)
    return {"run": done.ref, "started": done.started, "problem": problem}


def carry_out(order: Order, root: str | None, environ: Mapping[str, str], *, prove_s: float | None) -> CarriedOut:
    """Take an order, and wait for its start when `prove_s` says how long the job must live for it.

    Raises:
        Taken: the run id is another job's.
        HoldfastError: there is no run.
    """
    if order.scheduler:
        raise UsageError(f"{order.run_id} is for {order.scheduler}, which `submit` hands nothing to")
    ref, problem = take_order(order, root, environ)
    started = None
    if problem is None and prove_s is not None and list_attempts(ref.run_dir) == (FIRST_ATTEMPT,):
        try:
            started = prove_start(ref.run_dir, FIRST_ATTEMPT, prove_s=prove_s)
        except HoldfastError as error:
            problem = error
    return CarriedOut(ref, started, problem)


def read_words(words: list[str]) -> Call:
    """What the words ask for.

    Raises:
        UsageError: they are not those of this version.
    """
    named = dict(zip(words[::2], words[1::2], strict=False))
    try:
        if len(words) % 2 or named.keys() - {"--root", "--prove"}:
            raise ValueError
        return Call(named.get("--root"), float(named["--prove"]) if "--prove" in named else None)
    except ValueError:
        raise UsageError(f"submit does not take the words {words!r}") from None


def read_order(content: dict[str, object]) -> Order:
    """The order in a JSON object, checked for what nothing later would find.

    Raises:
        UsageError: it is of another version, or is not what it says.
    """
    if content.get("format") != ORDER_FORMAT:
        raise UsageError(f"an order of format {content.get('format')!r}; this holdfast reads {ORDER_FORMAT}")
    try:
        order = wire.decode(Order, content, "order")
    except wire.WireError as error:
        raise UsageError(f"the order cannot be read: {error}") from error
    if not is_run_id(order.run_id):
        raise UsageError(f"{order.run_id!r} is not a run id")
    if hash_job(order.job) != order.job_sha256:
        raise UsageError(f"the job of {order.run_id} is not the one that its hash is of")
    return order


def find_environ(order: Order, environ: Mapping[str, str]) -> Mapping[str, str]:
    """The environment of an order's job, with what the profile of the place adds to it on this box.

    Raises:
        UsageError, PreflightFailed: as of `choose_environ`.
    """
    chosen = choose_environ(order.env_from, environ)
    return {**chosen, **find_variables(order.profile, order.job, chosen)} if order.profile is not None else chosen


def take_order(order: Order, root: str | None, environ: Mapping[str, str]) -> tuple[RunRef, HoldfastError | None]:
    """The run of an order, made or found, with its supervisor started; and what went wrong once it was there.

    Raises:
        Taken: the run id is another job's.
        HoldfastError: there is no run.
    """
    ref = create_or_find(order, root, environ)
    run_dir, patience_s = ref.run_dir, 0.0 if ref.fresh else _patience(ref.run_dir)
    try:
        if not wait_briefly(lambda: _is_taken_up(run_dir), patience_s):
            start_supervisor(run_dir, FIRST_ATTEMPT, environ=environ, reason="start")
    except HoldfastError as error:
        return ref, error
    # So that people who type there find its runs.
    choose_root(os.path.dirname(run_dir))
    return ref, None


def create_or_find(order: Order, root: str | None, environ: Mapping[str, str]) -> RunRef:
    """The run of an order, made or found; nothing is started.

    Raises:
        Taken: the run id is another job's.
        HoldfastError: there is no run.
    """
    place = default_root(environ) if root is None else os.path.abspath(os.path.expanduser(root))
    run_dir = f"{place}/{order.run_id}"
    fresh = not os.path.lexists(f"{run_dir}/{wire.RUN}")
    if fresh:
        try:
            _create(order, place, run_dir, environ)
        except RunExists:
            fresh = False
    if not fresh:
        _compare(order, run_dir)
    return RunRef("", order.run_id, run_dir, fresh=fresh)


def _create(order: Order, root: str, run_dir: str, environ: Mapping[str, str]) -> None:
    _refuse_what_is_missing(order)

    # Before anything is made: what cannot be resolved would be found only after a tree was copied.
    refuse_secrets(prepare_job(order.job, order.setup, run_dir, environ, order.profile))
    refuse_absent_tree(order, root)

    def lay_out_code(built: str) -> JobSpec:
        return lay_out_order(order, root, built, environ)

    create_run(
        order.job,
        root,
        argv=order.argv,
        cwd=run_dir,
        environ=environ,
        run_id=order.run_id,
        gpu_wait_s=order.gpu_wait_s,
        ordered=OrderedRun(
            order.job_sha256,
            order.bundle,
            order.code,
            _name_author(order),
            lay_out_code,
            order.scheduler,
            order.after,
            order.place,
            order.profile,
        ),
    )


def lay_out_order(order: Order, root: str, built: str, environ: Mapping[str, str]) -> JobSpec:
    """The code of an order laid out in the directory of a run; the job as it runs there."""
    base = f"{built}/{WORK}"
    if order.code is None:
        os.mkdir(base, 0o700)
    else:
        base = lay_out(built, root, order.code)
    return prepare_job(order.job, order.setup, base, environ, order.profile)


def refuse_absent_tree(order: Order, root: str) -> None:
    """Refuse an order whose code is not here.

    Raises:
        StorageError: the desk is to send it, which `details` say.
    """
    if order.code is not None and not has_tree(root, order.code):
        raise StorageError(
            f"the code tree {order.code.tree} is not below {root}, or is damaged",
            hint="the same command from the desk sends it; with --like only --workdir DIR sends any",
            details={"code": "absent"},
        )


def has_tree(root: str, code: CodeRef) -> bool:
    """Whether the tree of an order is there, whole.

    Raises:
        UsageError: the order does not name one.
    """
    try:
        # First: what was used lately is not swept before a run or a job names it.
        note_use(tree_dir(root, code.tree))
        return is_whole(root, code.tree)
    except ValueError as error:
        raise UsageError(f"the code of the order: {error}") from error


def _refuse_what_is_missing(order: Order) -> None:
    for name in order.secrets:
        try:
            read_secret(name)
        except SecretUnusableError as error:
            # Said before there is a run; its own checks look once more.
            raise PreflightFailed(str(error), hint=f"holdfast secret push {order.place or 'PLACE'} {name}") from None


def _name_author(order: Order) -> str:
    return f"{order.by}@{order.desk}" if order.desk else order.by


def _compare(order: Order, run_dir: str) -> None:
    """Refuse to take a run for that of an order which it is not.

    Raises:
        Taken: it is another job's.
        StorageError: it cannot be told.
    """
    path = f"{run_dir}/{wire.RUN}"
    try:
        content = wire.parse_object(files.read_bytes(path), path)
        wire.require_format(content, path)
        origin = wire.decode(RunOrigin, content, path)
    except (OSError, wire.WireError) as error:
        raise StorageError(
            f"{run_dir} is there, and what it is cannot be read: {error}",
            hint="look at it on the box, or begin another run with --run-id",
        ) from error
    tree, wanted = (code.tree if code is not None else None for code in (origin.code, order.code))
    if origin.job_sha256 != order.job_sha256 or tree != wanted:
        other = "job" if origin.job_sha256 != order.job_sha256 else "code"
        raise Taken(
            f"{order.run_id} is there already, with another {other}",
            hint="leave --run-id out, or take another one",
            details={"run_id": order.run_id, "run_dir": run_dir},
        )


def _is_taken_up(run_dir: str) -> bool:
    """Whether the first attempt has, or had, a supervisor."""
    progress = read_progress(wire.attempt_dir(run_dir, FIRST_ATTEMPT))
    return progress is None or progress.supervisor is not None or progress.kind != "created"


def _patience(run_dir: str) -> float:
    """How much longer whoever made the run may need to start it."""
    try:
        age_s = time.time() - os.stat(run_dir).st_mtime
    except OSError:
        return 0.0
    return TAKE_UP_S - age_s if 0 <= age_s < TAKE_UP_S else 0.0
