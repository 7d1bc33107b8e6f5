"""The administrator stops another account's run: with a reason, which the run's own record and an audit line keep.

The request is the same file as the owner's, and the run's own supervisor carries it out. It is written with the owner's
rights, so that no link of theirs leads root elsewhere.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from holdfast.agent.caller import describe_caller
from holdfast.agent.requests import write_request
from holdfast.agent.view.grace import grace_of
from holdfast.agent.view.observe import observe_run
from holdfast.host import clock
from holdfast.host.files.ownership import act_as
from holdfast.host.lease.area import open_existing_area, write_audit
from holdfast.host.process.processes import user_name
from holdfast.model.errors import NotPermitted, StorageError
from holdfast.model.run import RequestKind, RunRequest

from .act import generation_of, require_actionable, wait_over
from .stop import WAIT_MARGIN_S, StopResult, describe_stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agent.view.run_view import RunView


def stop_of_other(
    run_dir: str, *, force: bool, reason: str, wait_s: float | None, tell: Callable[[RunView], None]
) -> StopResult:
    """Stop a run that belongs to another account, as root; as `stop.stop_run` besides.

    Raises:
        NotPermitted: we are not root, or there is no reason, or root may not act as that account.
        StorageError: nobody supervises it, a scheduler starts it, or nothing can be written.
    """
    uid = os.stat(run_dir).st_uid
    owner, before = user_name(uid), observe_run(run_dir)
    if os.geteuid() != 0:
        raise NotPermitted(f"{before.run_id} belongs to {owner}; you are {user_name(os.geteuid())}")
    if not reason.strip():
        raise NotPermitted(
            f"{before.run_id} belongs to {owner}, and no reason was given",
            hint=f'holdfast stop --reason "..." {shlex.quote(run_dir)}: {owner} reads it, and an audit line keeps it',
        )
    if before.over:
        return describe_stop(before, already=True)
    require_actionable(before)
    if before.scheduler:
        raise StorageError(
            f"{before.run_id} belongs to {owner}, and {before.scheduler} starts its attempts",
            hint="cancel its job there, as an administrator of that scheduler",
        )
    if not before.supervised:
        raise StorageError(
            f"{before.run_id} belongs to {owner}, and nobody supervises it",
            hint=f"runuser -u {owner} -- holdfast stop {shlex.quote(run_dir)}",
        )
    _write_down(before, owner, uid, reason)
    kind = RequestKind.STOP_NOW if force else RequestKind.STOP
    request = RunRequest(kind, describe_caller(), clock.utc_now(), reason, generation_of(before))
    try:
        with act_as(uid):
            write_request(run_dir, request)
    except OSError as error:
        raise NotPermitted(
            f"{before.run_id} belongs to {owner}, and root may not act as that account here: {error.strerror}",
            hint=f"runuser -u {owner} -- holdfast stop {shlex.quote(run_dir)}, where that account may be used",
        ) from error
    limit_s = grace_of(before) + WAIT_MARGIN_S if wait_s is None else wait_s
    return describe_stop(wait_over(run_dir, before.attempt, wait_s=limit_s, tell=tell), already=False)


def _write_down(view: RunView, owner: str, uid: int, reason: str) -> None:
    """An audit line, where the box has a lease area; the run's own record has the request in any case."""
    area = open_existing_area()
    if area is not None:
        write_audit(area, "stop", {"run_id": view.run_id, "owner": owner, "owner_uid": uid, "reason": reason})
