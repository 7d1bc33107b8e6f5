"""Pruning a run's scratch from the command line: find the run, show the plan, ask, remove."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from holdfast.core.scratch import Plan, Root, find_pattern_problem
from holdfast.model import wire
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.job import JobSpec
from holdfast.model.units import format_bytes

from .render import note, print_json, table

if TYPE_CHECKING:
    from holdfast.agent.observe import RunView
    from holdfast.diagnosis.storage.scratch import Found, Pruned

LOOK_WITHIN_S = 60.0
REMOVE_WITHIN_S = 600.0
MOST_ROWS = 40


def prune_run(name: str, *, yes: bool, dry_run: bool, also: tuple[str, ...], runs: str | None, as_json: bool) -> int:
    """Show what would go and what stays; remove it after consent; the exit code.

    Raises:
        UsageError: the run has not ended, or a pattern is none.
        StorageError: its record cannot be read.
    """
    from holdfast.agent import acting, observe

    from .runs import find, require_own, require_readable

    found = find(name, root=runs)
    if found.notice:
        note(found.notice)
    require_readable(found)
    require_own(found)
    for pattern in also:
        problem = find_pattern_problem(pattern)
        if problem:
            raise UsageError(f"--also: {pattern!r} {problem}", hint="write it relative to the run directory")
    view = acting.settle_and_look(found.run_dir)
    _require_ended(view)
    spec = _read_spec(view.record)
    patterns = (*spec.disk.scratch, *also)
    seen = _look(found.run_dir, spec, patterns)
    plan = seen.plan
    if not as_json:
        _show(plan, seen.left_out, found.run_dir, spec, patterns)
    if not plan.victims or dry_run or not _consent(plan, yes=yes, as_json=as_json, also=also):
        return _report(plan, None, as_json=as_json, left_out=seen.left_out)
    with acting.hold(found.run_dir, what="prune it"):
        # Somebody may have started it again while the question stood.
        _require_ended(observe.observe(found.run_dir))
        done = _remove(found.run_dir, spec, patterns)
    return _report(plan, done, as_json=as_json, left_out=seen.left_out)


def _require_ended(view: RunView) -> None:
    if not view.ended:
        words = f"{view.run_id} has not ended: it is {view.condition}"
        raise UsageError(f"{words}; its scratch may be in use", hint=f"holdfast stop {view.run_id}")


def _read_spec(record: dict[str, object]) -> JobSpec:
    try:
        return wire.decode(JobSpec, record.get("job"), "run.json")
    except wire.WireError as error:
        raise StorageError(f"the run's record cannot be read: {error}", hint="it declares no scratch then") from error


def _look(run_dir: str, spec: JobSpec, patterns: tuple[str, ...]) -> Found:
    from holdfast.diagnosis.storage import scratch
    from holdfast.host.offload import Offload, OffloadFailed

    work = Offload(lambda: wire.encode(scratch.find_scratch(run_dir, spec, patterns=patterns)))
    try:
        return wire.decode(scratch.Found, work.wait(LOOK_WITHIN_S))
    except (OffloadFailed, wire.WireError) as error:
        raise StorageError(f"{run_dir} could not be looked at: {error}", hint="does its disk answer?") from error


def _remove(run_dir: str, spec: JobSpec, patterns: tuple[str, ...]) -> Pruned:
    from holdfast.diagnosis.storage.scratch import prune_within

    return prune_within(run_dir, spec, REMOVE_WITHIN_S, patterns=patterns)


def _show(plan: Plan, left_out: tuple[str, ...], run_dir: str, spec: JobSpec, patterns: tuple[str, ...]) -> None:
    if not patterns:
        note("its job declares no scratch (disk.scratch), so nothing may go; --also PATTERN names some")
    rows = [
        (format_bytes(item.size_bytes), item.files, _path(item.root, item.path, run_dir, spec))
        for item in plan.victims[:MOST_ROWS]
    ]
    if rows:
        table(("size", "files", "path"), rows, right=(0, 1))
    if len(plan.victims) > MOST_ROWS:
        print(f"and {len(plan.victims) - MOST_ROWS} more")
    for kept in plan.kept[:MOST_ROWS]:
        note(f"stays: {_path(kept.item.root, kept.item.path, run_dir, spec)}: {kept.why.value}")
    for text in left_out:
        note(f"left out: {text}")


def _path(root: Root, path: str, run_dir: str, spec: JobSpec) -> str:
    return f"{run_dir if root is Root.RUN else spec.workdir}/{path}"


def _consent(plan: Plan, *, yes: bool, as_json: bool, also: tuple[str, ...]) -> bool:
    if yes:
        return True
    if as_json or sys.stdin is None or not sys.stdin.isatty():
        return False
    beyond = (
        f", {len(also)} pattern{'' if len(also) == 1 else 's'} of them beyond what the job declares" if also else ""
    )
    size = format_bytes(plan.size_bytes)
    return click.confirm(f"Remove {plan.files} files, {size}{beyond}?", default=False)


def _report(plan: Plan, done: Pruned | None, *, as_json: bool, left_out: tuple[str, ...]) -> int:
    code = StorageError.exit_code if done is not None and done.failed else 0
    if as_json:
        facts = {"plan": plan, "left_out": left_out, "removed": done is not None, "done": done, "exit_code": code}
        print_json({**facts, "size_bytes": plan.size_bytes, "files": plan.files})
    elif done is None:
        note(
            f"would remove {plan.files} files, {format_bytes(plan.size_bytes)}; --yes removes them"
            if plan.victims
            else "nothing to remove"
        )
    else:
        note(f"removed {done.files} files, {format_bytes(done.freed_bytes)}")
        for text in done.failed:
            note(f"not removed: {text}")
    return code
