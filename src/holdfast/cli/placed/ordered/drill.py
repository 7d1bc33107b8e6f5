"""``holdfast drill --on PLACE``: the job is read here, and rehearsed there; what was found is shown here."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from holdfast.agent.drill.report import DrillReport, PlacedDrill
from holdfast.cli.render import note, print_record
from holdfast.cli.render.drill import print_rehearsal
from holdfast.core.drill.drill import DrillVerdict
from holdfast.desk.connect import find_place, open_box, refuse_scheduled
from holdfast.desk.orders.build import build_order, draft_job
from holdfast.desk.route.screen import Screen
from holdfast.desk.terminal import drain, listening
from holdfast.model import wire
from holdfast.model.errors import CutOff, PlaceError
from holdfast.model.ids import build_run_id
from holdfast.transfer.answers import read_answer
from holdfast.transfer.code.push import push_tree
from holdfast.transfer.contact import ENTRY
from holdfast.transport.base import MOST_BYTES, Done

if TYPE_CHECKING:
    from holdfast.agent.drill.report import DrillRequest
    from holdfast.model.job import JobSpec
    from holdfast.transfer.box import Box


def rehearse_there(
    spec: JobSpec,
    wanted: DrillRequest,
    name: str,
    *,
    inexact: bool,
    keep: str | None,
    send_code: bool,
    as_json: bool,
) -> int:
    """Have the place rehearse the job; the exit code, or 128 + the number of the signal that ended it."""
    draft = draft_job(spec, os.environ, send_code=send_code)
    for warning in () if draft.tree is None else draft.tree.warnings:
        note(warning)
    place = find_place(name)
    refuse_scheduled(place, "a rehearsal would be one of the login node", f"holdfast run --on {name} runs it on a node")
    box = open_box(place)
    facts = box.ensure()
    if draft.tree is not None:
        push_tree(box, draft.tree)
    # The name of a directory for the code, which is gone afterwards.
    run_id = build_run_id(time.strftime("%Y%m%d-%H%M%S", time.gmtime()), draft.job.name, os.urandom(2).hex())
    order = build_order(draft, box.place, run_id=run_id, bundle=facts.bundle, argv=sys.argv)
    words = ("--root", facts.root, json.dumps(wire.encode(PlacedDrill(wanted, inexact, keep))))
    code, out = _follow(box, words, wire.to_bytes(order), quiet=as_json)
    if code < 0:
        note(f"left; the rehearsal at {name} ends, and removes what it has made")
        return 128 - code
    answer = read_answer(name, "drill", Done(code, out[:MOST_BYTES], b"", cut=len(out) > MOST_BYTES))
    try:
        report = wire.decode(DrillReport, answer.get("report"), "report")
        DrillVerdict[report.verdict.upper()]
    except (wire.WireError, KeyError) as error:
        raise PlaceError(
            f"{name} answered something else than a report: {error}", hint=f"holdfast place probe {name}"
        ) from error
    print_record(report) if as_json else print_rehearsal(report)
    return report.exit_code


def _follow(box: Box, words: tuple[str, ...], order: bytes, *, quiet: bool) -> tuple[int, bytes]:
    """Hand on what is said meanwhile; exit code (less than 0: that signal came here) and the answer."""
    out, screen = bytearray(), Screen(raw=False)

    def take(data: bytes) -> None:
        out.extend(data[: MOST_BYTES + 1 - len(out)])

    box.prepare(sends=True)
    with tempfile.TemporaryFile() as file, listening() as (wake_fd, heard):
        file.write(order)
        file.seek(0)

        def woken() -> bool:
            drain(wake_fd)
            return bool(heard)

        try:
            code = box.follow(
                (ENTRY, "drill", *words),
                out=take,
                err=(lambda _: None) if quiet else screen.err,
                stdin_fd=file.fileno(),
                wake_fd=wake_fd,
                woken=woken,
            )
        except CutOff as error:
            hint = "the rehearsal there ends with the link, and removes what it has made: say it again"
            raise CutOff(str(error), hint=hint, details=error.details) from error
        finally:
            screen.end()
        return (-heard[0] if code == -1 and heard else code), bytes(out)
