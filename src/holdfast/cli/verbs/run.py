"""``holdfast run``: resolve a job, start it under a supervisor of its own, follow it or return."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import JobCommand, job_options, resolve_job
from holdfast.cli.render import note, print_json
from holdfast.model.units import parse_duration

from . import SUMMARIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.cli.start import Progress
    from holdfast.model.job import JobSpec


@click.command(cls=JobCommand, short_help=SUMMARIES["run"])
@click.argument("job", required=False, type=click.Path())
@click.option("-d", "--detach", is_flag=True, help="Return as soon as the start is proven; the job goes on.")
@click.option(
    "--prove",
    default="2s",
    show_default=True,
    metavar="DURATION",
    help="With -d: how long the job must live to count as started; 0 is its exec.",
)
@click.option(
    "--runs",
    metavar="DIR",
    type=click.Path(),
    help="Directory of the runs. [default: $HOLDFAST_RUNS, else ~/.local/share/holdfast/runs]",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and start nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@job_options
def command(
    *,
    job: str | None,
    command: tuple[str, ...],
    detach: bool,
    prove: str,
    runs: str | None,
    dry_run: bool,
    as_json: bool,
    **options: object,
) -> int:
    """Run a job: leased, contained, supervised, limited, recorded.

    JOB is a YAML or TOML file; every key of it is also an option, and options win. Without a file write the command
    behind `--`. The job is always detached: `run` only follows it, so a lost terminal never ends a job. Ctrl-C asks it
    to stop, a second one ends it at once. The exit code is the job's own.
    """
    spec = resolve_job(job, command, options)
    prove_s = _read_prove(prove)
    if dry_run:
        from holdfast.cli.plan import build_plan, print_plan

        plan = build_plan(spec, os.environ)
        print_json({"plan": plan}) if as_json else print_plan(plan)
        return plan.exit_code
    from holdfast.cli.runs import choose_root

    return _start(spec, choose_root(runs), detach=detach, prove_s=prove_s, as_json=as_json)


def _read_prove(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.UsageError(f"--prove: {error}") from error


def _start(spec: JobSpec, root: str, *, detach: bool, prove_s: float, as_json: bool) -> int:
    from holdfast.cli.start import FIRST_ATTEMPT, launch

    run_dir, run_id = launch(spec, root, argv=sys.argv, environ=os.environ)
    try:
        if detach:
            return _prove(run_dir, run_id, prove_s=prove_s, as_json=as_json)
        return _follow(run_dir, run_id, FIRST_ATTEMPT, as_json=as_json)
    except KeyboardInterrupt:
        note(f"left alone: {run_id} goes on; `holdfast attach {run_id}`, `holdfast stop {run_id}`")
        raise


def _follow(run_dir: str, run_id: str, attempt: int, *, as_json: bool) -> int:
    from holdfast.cli import attach

    if not as_json:
        note(f"run {run_id}")
    code = attach.follow(run_dir, attempt, quiet=as_json)
    if as_json:
        from holdfast.agent.observe import observe

        view = observe(run_dir)
        facts = {"run_id": run_id, "run_dir": run_dir, "attempt": view.attempt, "exit_code": code}
        print_json({**facts, "condition": view.condition, "note": view.note})
    return code


def _prove(run_dir: str, run_id: str, *, prove_s: float, as_json: bool) -> int:
    from holdfast.cli.start import FIRST_ATTEMPT, wait_for_start

    progress = wait_for_start(run_dir, FIRST_ATTEMPT, prove_s=prove_s)
    code = int(progress.data.get("exit_code", 0)) if progress.kind == "ended" else 0
    if as_json:
        facts: Mapping[str, object] = {
            "run_id": run_id,
            "run_dir": run_dir,
            "attempt": FIRST_ATTEMPT,
            "state": progress.data,
            "exit_code": code if progress.kind == "ended" else None,
        }
        print_json(facts)
        return code
    print(run_id, flush=True)
    for line in _describe(progress, run_id):
        note(line)
    return code


def _describe(progress: Progress, run_id: str) -> list[str]:
    """What a person should know after ``-d``."""
    follow = f"holdfast attach {run_id}    stop: holdfast stop {run_id}"
    if progress.kind == "waiting":
        held = "; ".join(_describe_busy(busy) for busy in progress.data["blocked_by"])
        return [f"in line for cards: {held}", f"follow: {follow}"]
    if progress.kind == "ended":
        refusal = progress.data.get("refusal") or {}
        lines = [f"ended already: {progress.data['outcome']}, exit code {progress.data['exit_code']}"]
        lines += [refusal[key] for key in ("message", "hint") if refusal.get(key)]
        return [*lines, f"look: holdfast show {run_id}    output: holdfast logs {run_id}"]
    devices = ", ".join(f"{device['index']} ({device['name']})" for device in progress.data.get("devices", []))
    return [f"running on card {devices}" if devices else "running", f"follow: {follow}"]


def _describe_busy(busy: Mapping[str, object]) -> str:
    since = f" since {busy['since']}" if busy.get("since") else ""
    index = busy.get("index")
    device = busy["device"] if index is None else f"card {index}"
    return f"{device} is held by {busy['holder']}{since}"
