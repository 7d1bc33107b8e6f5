"""``preflight --on PLACE``: the job is read here, its code is sent, all checks are done there; nothing is started."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from holdfast.cli.job.config_syntax import refuse_bad_configs
from holdfast.cli.render import note, print_record
from holdfast.cli.render.findings import print_findings
from holdfast.core.slurm.contradictions import refuse_contradictions
from holdfast.desk.connect import find_place, open_box
from holdfast.desk.orders.build import build_order, draft_job
from holdfast.desk.orders.paths import DeskPath
from holdfast.desk.route.hints import name_place
from holdfast.model import wire
from holdfast.model.errors import PlaceError
from holdfast.model.finding import Finding, Level
from holdfast.model.ids import build_run_id
from holdfast.model.record import record, replace
from holdfast.model.slurm import SLURM
from holdfast.transfer.code.push import push_tree

if TYPE_CHECKING:
    from holdfast.model.job import JobSpec

WITHIN_S = 120.0
"""Beside the job's own limit for its checks: a tree is hashed and copied there first."""


@record
class CheckedThere:
    """All checks of a job at a place; as of `PreflightReport`."""

    place: str
    job: str
    level: Level
    findings: tuple[Finding, ...]
    exit_code: int


def check_there(spec: JobSpec, name: str, *, send_code: bool, strict: bool, as_json: bool) -> int:
    """Have the place look at the job; the exit code."""
    place = find_place(name)
    refuse_bad_configs((spec.config,) if isinstance(spec.config, DeskPath) else ())
    draft = replace(draft_job(spec, os.environ, send_code=send_code), native=place.slurm)
    scheduler = SLURM if place.kind == SLURM else ""
    if scheduler:
        refuse_contradictions(draft.job, {**draft.native, **draft.job.slurm})
    for warning in () if draft.tree is None else draft.tree.warnings:
        note(warning)
    box = open_box(place)
    facts = box.ensure()
    if draft.tree is not None:
        push_tree(box, draft.tree)
    # The name of a directory for the checks, which is gone afterwards.
    run_id = build_run_id(time.strftime("%Y%m%d-%H%M%S", time.gmtime()), draft.job.name, os.urandom(2).hex())
    order = replace(build_order(draft, place, run_id=run_id, bundle=facts.bundle, argv=sys.argv), scheduler=scheduler)
    words = ("--root", facts.root, *(("strict",) if strict else ()))
    entry, words = ("slurm", ("check", *words)) if scheduler else ("check", words)
    limit_s = WITHIN_S + order.job.timeouts.preflight_s
    answer = box.entry(entry, words, stdin=wire.to_bytes(order), limit_s=limit_s)
    report = answer.get("report")
    try:
        found = wire.decode(CheckedThere, {**report, "place": name} if isinstance(report, dict) else report, "report")
    except wire.WireError as error:
        raise PlaceError(
            f"{name} answered something else than its checks: {error}", hint=f"holdfast place probe {name}"
        ) from error
    found = replace(
        found, findings=tuple(replace(item, remedy=name_place(item.remedy, name)) for item in found.findings)
    )
    print_record(found) if as_json else print_findings(found.findings, strict=strict)
    return found.exit_code
