"""A job that a desk has read anew for a run of this box (`ChangeOrder`): what it comes to here.

The code of a run stays what it was begun with. Where the desk has another one now, that is refused and said: a changed
job over unchanged code is not what a person has in front of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.control.job.ordered import lay_out, prepare_job
from holdfast.agent.plan.profile import read_profile
from holdfast.agent.view.source_change import read_origin
from holdfast.core.code.manifest import describe_other_code, state_files
from holdfast.core.control_characters import clean
from holdfast.core.job.secret_names import read_uses
from holdfast.host.files import files
from holdfast.host.files.code import store
from holdfast.host.files.secret_files import SecretUnusableError, read_secret
from holdfast.model import wire
from holdfast.model.errors import PreflightFailed, StorageError, UsageError
from holdfast.model.order import ORDER_FORMAT, ChangeOrder, CodeRef
from holdfast.model.record import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.job import JobSpec

MOST_NAMED = 5
MOST_CHANGE_BYTES = 32 << 20
"""What a desk sends of a file at most."""


def read_change(path: str) -> ChangeOrder:
    """What a desk has sent.

    Raises:
        UsageError: it is of another version, or cannot be read.
    """
    try:
        content = wire.parse_object(files.read_bytes(path, limit=MOST_CHANGE_BYTES), "the changed job")
        if content.get("format") != ORDER_FORMAT:
            raise UsageError(f"a changed job of format {content.get('format')!r}; this holdfast reads {ORDER_FORMAT}")
        return wire.decode(ChangeOrder, content, "the changed job")
    except wire.WireError as error:
        raise UsageError(f"the changed job cannot be read: {error}") from error


def resolve_change_order(order: ChangeOrder, run_dir: str, before: JobSpec, environ: Mapping[str, str]) -> JobSpec:
    """The job of the next attempt, with the paths of this box; the run's name stays.

    Raises:
        UsageError: the code at the desk is not the run's.
        PreflightFailed: it names a variable or a secret that this box has not.
        StorageError: the run's code is not there.
    """
    for use in read_uses(order.job.secrets):
        try:
            read_secret(use.name)
        except SecretUnusableError as error:
            raise PreflightFailed(str(error), hint=f"holdfast secret push PLACE {use.name}") from None
    base = before.workdir
    if order.code is not None:
        stored = read_origin(run_dir).get("code")
        own = None if stored is None else wire.decode(CodeRef, stored)
        _require_same_code(order, own, run_dir)
        assert own is not None
        shared = not os.path.isdir(f"{run_dir}/{store.WORK}")
        base = lay_out(run_dir, os.path.dirname(run_dir), replace(own, workdir=order.code.workdir), shared=shared)
    command = before.command if order.keeps_command else order.job.command
    job = replace(order.job, name=before.name, command=command)
    stated = read_origin(run_dir).get("profile")
    profile = None if stated is None else read_profile(stated)
    return prepare_job(job, order.setup, base, environ, profile)


def _require_same_code(order: ChangeOrder, own: CodeRef | None, run_dir: str) -> None:
    assert order.code is not None
    run_id = os.path.basename(run_dir)
    stays = f"a restart keeps the code of its run: holdfast restart {run_id} --no-code --job FILE changes the job alone"
    anew = "`holdfast run` begins another run with the code of the desk"
    if own is None:
        raise UsageError(f"{run_id} was begun without code of a desk", hint=f"{stays}; {anew}")
    if own.tree == order.code.tree:
        return
    root = os.path.dirname(run_dir)
    try:
        manifest = store.read_manifest(store.tree_dir(root, own.tree), own.tree)
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) else str(error)
        raise StorageError(f"the code of {run_id}, tree {own.tree}: {words}", hint=anew) from error
    before = state_files(manifest, besides=order.besides)
    other = describe_other_code(before, order.files, order.job.command)
    if other:
        more = f" and {len(other) - MOST_NAMED} more" if len(other) > MOST_NAMED else ""
        named = clean(", ".join(other[:MOST_NAMED])) + more
        raise UsageError(f"the code at the desk is not that of {run_id}: {named}", hint=f"{stays}; {anew}")
