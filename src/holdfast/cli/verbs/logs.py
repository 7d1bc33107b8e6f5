"""``holdfast logs``: the job's output, the supervisor's messages, or the events of runs."""

from __future__ import annotations

import os
import re
import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from holdfast.agent.view.live.lines import FilteredLog, LogFile, follow_all, label_runs, read_all
from holdfast.agent.view.live.logs import Logs, choose_attempts, find_lost, find_missing, open_log, read_logs, stream
from holdfast.agent.view.live.logs import follow as follow_log
from holdfast.agent.view.nodes import name_output, read_nodes
from holdfast.cli.completion import complete_runs
from holdfast.cli.errors import EXIT_BROKEN_PIPE
from holdfast.cli.job_output import JobOutput
from holdfast.cli.named_run import find_ending, find_group, find_readable, means_group
from holdfast.cli.path_type import PATH
from holdfast.cli.render import note, print_record
from holdfast.desk.caller import CALLER
from holdfast.desk.terminal import watch_reader, write_fully
from holdfast.model import wire
from holdfast.model.errors import NoSuchRun, UsageError
from holdfast.model.record import record, replace
from holdfast.model.units import format_count

from . import SUMMARIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.desk.route.frames import Position

    Chosen = Sequence[tuple[str, Sequence[int]]]

HEADED = 2
"""From this many attempts on each one shown gets a heading."""
EPILOG = """\b
holdfast logs -f digits                       as it comes, until the run is over
holdfast logs -f a b --grep loss              of two runs, the lines with "loss"
holdfast logs lr/ -n 1                        the last line of each job of a sweep or group"""


@record
class ManyLogs:
    """The lines of several runs."""

    runs: tuple[Logs, ...]


@click.command(short_help=SUMMARIES["logs"], epilog=EPILOG)
@click.argument("names", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_runs)
@click.option("-f", "--follow", is_flag=True, help="Go on printing until the run is over.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Only the last N lines. [default: all]")
@click.option("--grep", metavar="PATTERN", help="Only lines with this regular expression (Python's); -n counts these.")
@click.option("--supervisor", is_flag=True, help="The supervisor's own messages instead.")
@click.option("--events", is_flag=True, help="The event stream (one JSON object a line) instead.")
@click.option(
    "--node", type=click.IntRange(min=0), metavar="K", help="Which node's output, of a run over several. [default: 0]"
)
@click.option("--attempt", metavar="N|all", help="Which attempt. [default: the newest]")
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with the lines instead of text.")
def command(  # noqa: PLR0913 - one for each option
    *,
    names: tuple[str, ...],
    follow: bool,
    lines: int | None,
    grep: str | None,
    supervisor: bool,
    events: bool,
    node: int | None,
    attempt: str | None,
    runs: str | None,
    as_json: bool,
) -> int:
    """Print or follow the output of each RUN (its id, the beginning of it, or its name), live or ended.

    Of several runs, or GROUP/ for the jobs of a group or sweep, each line begins with the name of its run. A group is
    followed until none of its jobs goes on: those that begin meanwhile are shown, too.

    The job's bytes are printed as they are. Where the middle was cut because the output is capped, a line in it says
    how much went; what the disk refused is said behind it, on standard error. With --json at most the last 16 MiB and
    200,000 lines, and how many bytes before them were left out. Exit code 0 also where no line matches --grep, which
    is said on standard error.
    """
    if supervisor and events:
        raise UsageError("--supervisor and --events exclude each other", hint="choose one")
    if node is not None and (supervisor or events):
        raise UsageError("--node is for the job's output, and a run has one supervisor", hint="leave one out")
    if follow and as_json:
        raise UsageError("--follow prints as it comes; --json is one object", hint="leave one out, or follow --events")
    name = wire.SUPERVISOR_LOG if supervisor else wire.EVENTS if events else name_output(node or 0)
    if follow and CALLER.place is None:
        # A reader leaves nothing half done: it may end at any instant, whatever the main thread waits for then.
        watch_reader(1, partial(os._exit, EXIT_BROKEN_PIPE))
    groups = [name for name in names if means_group(name)]
    run_dirs = _find_runs(names, runs, follow=follow)
    pattern = None if grep is None else _read_pattern(grep)
    chosen = [(run_dir, choose_attempts(run_dir, attempt)) for run_dir in run_dirs]
    if as_json:
        _print_json(chosen, name, lines, pattern)
        return 0
    if node:
        for run_dir, numbers in chosen:
            _require_node(run_dir, numbers[-1], node)
    if groups or len(run_dirs) > 1 or pattern is not None:
        output = _Lines(name, pattern, lines, named=bool(groups) or len(run_dirs) > 1)
        output.follow(chosen, groups, runs) if follow else output.print(chosen)
        return 0
    _print_one(*chosen[0], name, lines=lines, follow=follow, nodes=node is None)
    return 0


def _print_one(
    run_dir: str, numbers: Sequence[int], name: str, *, lines: int | None, follow: bool, nodes: bool
) -> None:
    """The bytes of one run as they are."""
    begun = CALLER.position if follow else None
    for number in numbers:
        if begun is not None and number < begun.attempt:
            continue
        if len(numbers) >= HEADED:
            note(f"attempt {number}")
        start = begun if begun is not None and number == begun.attempt else None
        _print(run_dir, number, name, lines=lines, follow=follow and number == numbers[-1], start=start)
        _tell_lost(run_dir, number, name)
        if name == wire.OUTPUT and nodes and (found := read_nodes(wire.attempt_dir(run_dir, number))):
            last = len(found.nodes) - 1
            others = "the other: --node 1" if last == 1 else f"the others: --node 1 to --node {last}"
            note(f"this is node 0 of {len(found.nodes)}; {others}")


def _tell_lost(run_dir: str, attempt: int, name: str) -> None:
    """Say that the disk refused some of what was printed, and so it is not all."""
    lost = find_lost(run_dir, attempt, name)
    if lost is not None:
        run_id = os.path.basename(run_dir)
        note(f"attempt {attempt} of {run_id}: {lost.describe()}; holdfast show {run_id}")


def _find_runs(names: Sequence[str], runs: str | None, *, follow: bool) -> list[str]:
    """The directories of the runs that are meant, each once."""
    found: list[str] = []
    for name in names:
        if means_group(name):
            group = find_group(name, runs)
            if group.removed:
                note(
                    f"{name}: the runs of {format_count(group.removed, 'job')} were removed, and their output with them"
                )
            if not (group.run_dirs or (follow and group.open)):
                if group.removed:
                    raise NoSuchRun(f"no run of {name} is left", hint=f"holdfast sweep check {name.rstrip('/')}")
                raise NoSuchRun(f"no job of {name} has a run", hint=f"holdfast queue ls {name.rstrip('/')}")
            found += group.run_dirs
        else:
            found.append((find_ending if follow else find_readable)(name, runs).run_dir)
    return list(dict.fromkeys(found))


def _read_pattern(text: str) -> re.Pattern[bytes]:
    try:
        return re.compile(text.encode("utf-8", "surrogateescape"))
    except re.error as error:
        raise UsageError(
            f"--grep {text!r}: {error}", hint="a regular expression; `\\[` for a bracket itself"
        ) from error


def _print_json(
    chosen: Sequence[tuple[str, Sequence[int]]], name: str, lines: int | None, pattern: re.Pattern[bytes] | None
) -> None:
    found = [read_logs(run_dir, numbers, name, None if pattern else lines) for run_dir, numbers in chosen]
    if pattern is not None:
        found = [_filter(one, pattern, lines) for one in found]
    print_record(found[0] if len(found) == 1 else ManyLogs(tuple(found)))


def _filter(logs: Logs, pattern: re.Pattern[bytes], lines: int | None) -> Logs:
    attempts = []
    for one in logs.attempts:
        kept = [line for line in one.lines if pattern.search(line.encode("utf-8", "surrogateescape"))]
        attempts.append(replace(one, lines=tuple(kept if lines is None else kept[max(0, len(kept) - lines) :])))
    return replace(logs, attempts=tuple(attempts))


class _Lines:
    """The lines of several runs, or the matching ones of one: the last `lines` of them (None: all)."""

    def __init__(self, name: str, pattern: re.Pattern[bytes] | None, lines: int | None, *, named: bool) -> None:
        self._name, self._pattern, self._lines, self._named = name, pattern, lines, named
        self._logs: list[FilteredLog] = []
        self._stuck = ""
        self._written = False

    def print(self, chosen: Chosen) -> None:
        """Print what is there."""
        try:
            self._logs += self._open([(run_dir, number) for run_dir, numbers in chosen for number in numbers])
            for log in self._logs:
                for line in read_all(log, self._lines):
                    self._write(line)
            self._tell_end()
        finally:
            self._close()

    def follow(self, chosen: Chosen, groups: Sequence[str], runs: str | None) -> None:
        """Print what is there and what comes, also of runs and attempts that a group gets meanwhile."""
        try:
            self._logs += self._open([(run_dir, numbers[-1]) for run_dir, numbers in chosen])
            sys.stdout.flush()
            find_more = (lambda: self._find_more(groups, runs)) if groups else None
            for view in follow_all(self._logs, self._lines, self._write, find_more):
                note(f"{view.run_id} {view.condition}: {view.note}")
            if self._stuck:
                note(f"nothing more comes by itself: {self._stuck}")
            self._tell_end()
        finally:
            self._close()

    def _find_more(self, groups: Sequence[str], runs: str | None) -> tuple[Sequence[FilteredLog], bool]:
        found = [find_group(group, runs) for group in groups]
        run_dirs = [run_dir for group in found for run_dir in group.run_dirs]
        logs = self._open([(run_dir, choose_attempts(run_dir, None)[-1]) for run_dir in run_dirs])
        known = {log.file.path for log in self._logs}
        before, self._stuck = self._stuck, "; ".join(filter(None, (group.stuck for group in found)))
        # Between two jobs it may look for a moment as if nothing went on.
        goes_on = any(group.open and not group.stuck for group in found) or before != self._stuck
        return [log for log in logs if log.file.path not in known], goes_on

    def _open(self, attempts: Sequence[tuple[str, int]]) -> list[FilteredLog]:
        run_dirs = list(dict.fromkeys(run_dir for run_dir, _ in attempts))
        labels = dict(zip(run_dirs, label_runs(run_dirs), strict=True)) if self._named else {}
        files = [LogFile(run_dir, number, self._name, labels.get(run_dir, "")) for run_dir, number in attempts]
        return [FilteredLog(file, self._pattern) for file in files]

    def _write(self, line: bytes) -> None:
        write_fully(sys.stdout.buffer, line)
        self._written = True

    def _tell_end(self) -> None:
        if self._pattern is not None and not self._written and self._lines != 0:
            text = os.fsdecode(self._pattern.pattern)
            note(
                f"no line matches {text!r}"
                + ("" if "(?i" in text else "; (?i) before it takes upper and lower case alike")
            )
        for log in self._logs:
            _tell_lost(log.file.run_dir, log.file.attempt, self._name)

    def _close(self) -> None:
        for log in self._logs:
            log.close()


def _require_node(run_dir: str, attempt: int, node: int) -> None:
    nodes = read_nodes(wire.attempt_dir(run_dir, attempt))
    if nodes is not None and node >= len(nodes.nodes):
        run_id, last = os.path.basename(run_dir), len(nodes.nodes) - 1
        raise UsageError(f"{run_id} has {last + 1} nodes, and none is {node}", hint=f"--node 0 to --node {last}")


def _print(run_dir: str, attempt: int, name: str, *, lines: int | None, follow: bool, start: Position | None) -> None:
    missing = None if follow else find_missing(run_dir, attempt, name)
    if missing is not None:
        how = f"{missing.condition}: {missing.note}" if missing.note else missing.condition
        note(f"attempt {attempt} of {missing.run_id} has written no {name}; {how}")
        return
    reader = open_log(run_dir, attempt, name, lines, None if start is None else (start.offset, start.anchor))
    output = JobOutput(os.path.basename(run_dir), attempt, reader)
    if not follow:
        output.write(stream(reader))
        return
    view = follow_log(run_dir, attempt, reader, write=output.write)
    note(f"{view.run_id} {view.condition}: {view.note}")
