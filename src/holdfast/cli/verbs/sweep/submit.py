"""``holdfast sweep submit``, or just ``holdfast sweep SOURCE``: many jobs made from one."""

from __future__ import annotations

import os
import time
from typing import Any

import click

from holdfast.cli.completion import complete_jobs
from holdfast.cli.job.options import JobCommand, collect_nodes, job_options
from holdfast.cli.lazy_group import complete_places
from holdfast.cli.path_type import PATH
from holdfast.cli.placed.wish import JobsWish, read_place
from holdfast.cli.sweep.plan import SweepOptions, plan_sweep
from holdfast.cli.wait import wait as wait_for
from holdfast.core.moments import parse_moment
from holdfast.core.queue.contradictions import refuse_contradictions
from holdfast.core.queue.submit_options import split_needs
from holdfast.model.queue import IfChanged

from . import VERBS

_NOT_TAKEN = frozenset({"name", "priority", "gpu.wait"})
"""Keys of a job whose options mean the sweep's or the queue's own here."""


@click.command("submit", cls=JobCommand, short_help=VERBS["submit"])
@click.argument("source", required=False, type=PATH, metavar="[SWEEP|JOB]")
@click.option("--name", metavar="NAME", help="The sweep's name. [default: the file's `name:`, else the file's name]")
@click.option("--grid", multiple=True, metavar="NAME=V,V", help="Vary a parameter over values; may be repeated.")
@click.option("--csv", "table", metavar="FILE", type=PATH, help="Jobs as the rows of a CSV file.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="One value for all jobs.")
@click.option(
    "--arguments",
    metavar="STYLE",
    help="How parameters become arguments; `none`: not at all. [default: --{name}={value}]",
)
@click.option(
    "--shared",
    multiple=True,
    metavar="PATH",
    type=PATH,
    help="Several jobs may write below PATH: they use different names there.",
)
@click.option("--strict", is_flag=True, help="Refuse a value for all jobs that contradicts a job's own.")
@click.option("--priority", type=click.IntRange(-1_000_000, 1_000_000), metavar="N", help="Higher starts first.")
@click.option(
    "--after",
    multiple=True,
    metavar="JOB[,JOB]",
    shell_complete=complete_jobs,
    help="Start only when these are proven done; GROUP/ is a whole group.",
)
@click.option("--not-before", metavar="TIME", help="Start then or later: 22:00, +2h, 2026-11-21T08:00.")
@click.option("--max-parallel", type=click.IntRange(min=1), metavar="N", help="At most so many jobs at once.")
@click.option("--hold-after", type=click.IntRange(min=0), metavar="N", help="Stop the sweep after N failures in a row.")
@click.option(
    "--if-changed",
    type=click.Choice([choice.value for choice in IfChanged]),
    default=IfChanged.RUN.value,
    show_default=True,
    help="What to do when a script differs at the start from now.",
)
@click.option("--claims", metavar="DIR", type=PATH, help="Shared directory in which boxes claim jobs.")
@click.option("--paused", is_flag=True, help="Hand in and pause; `holdfast queue resume NAME` starts it.")
@click.option("--wait", "wait", is_flag=True, help="Wait until every job is proven done, as `holdfast wait`.")
@click.option("--runs", metavar="DIR", type=PATH, help="Directory of the runs. [default: as for `run`]")
@click.option(
    "--on",
    metavar="PLACE",
    shell_complete=complete_places,
    help="Hand it in at a place: code is sent along, and it runs there.",
)
@click.option("--no-code", is_flag=True, help="With --on: send no code along.")
@click.option("--dry-run", is_flag=True, help="Show every job, and hand nothing in.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@job_options
def command(  # noqa: PLR0913 - one for each option
    *,
    source: str | None,
    command: tuple[str, ...],
    strict: bool,
    runs: str | None,
    on: str | None,
    no_code: bool,
    wait: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - click's values
) -> int:
    """Hand in a sweep file, or a job with what varies. This is what `holdfast sweep SOURCE` does.

    Every combination of the --grid values is a job, named after them; a job that is in the queue already with the
    same configuration is left as it is, so handing in an edited file adds what is new. A parameter goes where the job
    has its placeholder {name}, else into the configuration that is resolved, else behind the command as --name=value.

    With --on all files are read here, and one tree of code goes along for all jobs; the place's queue runs them, or
    its Slurm, as tasks of arrays.
    """
    place = read_place(on, no_code=no_code)
    asked = _read_asked(source, command, options, elsewhere=place is not None)
    if place is not None:
        wish = JobsWish(place, runs, not no_code, wait, dry_run, as_json, options["not_before"])
        from holdfast.cli.placed.enqueue import hand_in_sweep  # lazy: who has no places does not pay for them

        return hand_in_sweep(asked, wish, strict=strict)
    made = plan_sweep(asked)
    if strict:
        refuse_contradictions(made.built)
    from . import hand_in as here  # lazy: a desk may lack what a queue of this machine needs

    if dry_run:
        here.show_preview(made, as_json=as_json)
        return 0
    here.hand_in(made, runs, as_json=as_json, waits=wait)
    if not wait:
        return 0
    return wait_for([f"{made.group}/"], as_json=as_json)


def _read_asked(
    source: str | None, command: tuple[str, ...], options: dict[str, Any], *, elsewhere: bool
) -> SweepOptions:
    moment, claims = options["not_before"], options["claims"]
    return SweepOptions(
        source,
        command,
        collect_nodes(options),
        name=options["name"],
        grid=options["grid"],
        settings=options["settings"],
        csv=options["table"],
        arguments=options["arguments"],
        shared=options["shared"],
        after=split_needs(options["after"]),
        priority=options["priority"],
        max_parallel=options["max_parallel"],
        hold_after=options["hold_after"],
        not_before=None if moment is None else parse_moment(moment, time.time()),
        if_changed=IfChanged(options["if_changed"]),
        paused=options["paused"],
        claims=claims if claims is None or elsewhere else os.path.abspath(os.path.expanduser(claims)),
    )


def _drop_options(taken: click.Command) -> None:
    """Leave out the job's options that this verb says otherwise."""
    dropped = {f"job_{path.replace('.', '__')}" for path in _NOT_TAKEN}
    taken.params = [parameter for parameter in taken.params if parameter.name not in dropped]


_drop_options(command)
