"""Approvals of single acts: ``places/PLACE/approvals.jsonl`` of the desk, a line each, on disk before the act is told.

An approval is for one plan, by its hash, and is used once: a plan has the number of lines before it in it, so the same
one is another afterwards. A line that a crash tore was never told to anybody; it counts as a line.
"""

from __future__ import annotations

import json
import os

from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.errors import PreflightFailed, StorageError
from holdfast.model.place import Place
from holdfast.model.record import record
from holdfast.model.teardown import APPROVALS, Approval
from holdfast.store.paths import make_state_directory, state_directory

from .plan import name_machine

MOST_BYTES = 4 << 20


@record
class Approvals:
    """What was approved of a place, oldest first. `number` counts torn lines, too."""

    used: tuple[Approval, ...] = ()
    number: int = 0


def read_approvals(place: str) -> Approvals:
    """What was approved of a place.

    Raises:
        StorageError: it cannot be read.
    """
    path = f"{state_directory()}/places/{place}/{APPROVALS}"
    try:
        lines = [line for line in files.read_bytes(path, limit=MOST_BYTES, owners={os.geteuid()}).split(b"\n") if line]
    except FileNotFoundError:
        return Approvals()
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read: {error.strerror or error}",
            hint="it says what was approved; see its owner and size",
        ) from error
    used = []
    for line in lines:
        try:
            used.append(wire.from_bytes(Approval, line, path))
        except wire.WireError:
            continue
    return Approvals(tuple(used), len(lines))


def list_of_rent(place: Place) -> tuple[Approval, ...]:
    """What was approved of the machine that the place is now, since its rent began, oldest first.

    Approvals outlive the place, and its name may be another machine's now.

    Raises:
        StorageError: as of `read_approvals`.
    """
    since = "" if place.rent is None else place.rent.since
    machine = (name_machine(place), place.host)
    return tuple(each for each in read_approvals(place.name).used if each.at >= since and each.host in machine)


def use_approval(approval: Approval, number: int) -> None:
    """Write an approval, which is used up by that: on the disk on return. `number` is what its plan was made with.

    Raises:
        PreflightFailed: this or another one was used meanwhile.
        StorageError: it cannot be written.
    """
    directory = make_state_directory(f"places/{approval.place}")
    path = f"{directory}/{APPROVALS}"
    try:
        with files.alone_in(directory):
            known = read_approvals(approval.place)
            refuse_used(known, approval.plan)
            if known.number != number:
                raise PreflightFailed(
                    f"something else of {approval.place} was approved meanwhile",
                    hint="look again: the same command with --dry-run",
                )
            files.append(path, json.dumps(wire.encode(approval)).encode() + b"\n", durable=True)
            files.sync_directory(directory)
    except OSError as error:
        hint = "nothing was approved; make room there"
        raise StorageError(f"{path} cannot be written: {error.strerror}", hint=hint) from error


def refuse_used(known: Approvals, plan: str) -> None:
    """Refuse a plan that was approved before.

    Raises:
        PreflightFailed: it was.
    """
    for approval in known.used:
        if approval.plan == plan:
            raise PreflightFailed(
                f"the approval {plan} was used at {approval.at} by {approval.by}, and one is for one act",
                hint="look again, and approve what is so then: the same command with --dry-run in place of --approve",
            )
