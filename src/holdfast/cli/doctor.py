"""The doctor's findings on the screen, and the reaper's questions."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from holdfast.model.errors import StillAlive, UsageError
from holdfast.model.finding import Finding, Level, worst
from holdfast.model.units import format_duration

from .render import clean, heading, is_terminal, note, paint, print_json, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.agent.doctor.host import Host
    from holdfast.agent.reaper import Leftovers, Reaped

EXIT_FAILED = 1


def examine_host(*, python: str | None, network: bool, runs: str | None, as_json: bool) -> int:
    """Look at this host and print what was found, section by section as they come; the exit code."""
    from holdfast.agent.doctor.examine import examine

    host = build_host(python=python, network=network, runs=runs)
    found: list[Finding] = []
    last = ""
    for title, findings in examine(host):
        found += findings
        if not as_json and findings:
            if title != last:
                heading(title)
            last = title
            _print_section(findings)
    level = worst(found)
    code = EXIT_FAILED if level is Level.FAIL else 0
    if as_json:
        print_json({"level": level, "findings": found, "exit_code": code})
    else:
        counts = {level: sum(finding.level is level for finding in found) for level in Level}
        print(", ".join(f"{count} {level.value}" for level, count in counts.items() if count))
    return code


def build_host(*, python: str | None = None, network: bool = False, runs: str | None = None) -> Host:
    """This host as the sections want it; what takes long is told on standard error, to people only.

    Raises:
        HoldfastError: the rules of the box cannot be trusted or read.
    """
    from holdfast.agent.doctor.host import Host
    from holdfast.host.rulesfile import read_rules

    from .runs import list_roots

    def tell(text: str) -> None:
        if is_terminal(sys.stderr):
            note(text)

    roots = tuple(root for root in list_roots(runs) if os.path.isdir(root))
    return Host(os.environ, read_rules(os.environ), roots, python=python, network=network, tell=tell)


def _print_section(findings: Sequence[Finding]) -> None:
    for finding in findings:
        word = paint(finding.level.value) + " " * (7 - len(finding.level.value))
        evidence = f": {clean(finding.evidence)}" if finding.evidence else ""
        print(f"  {word}  {clean(finding.subject)}{evidence}", flush=True)
        if finding.remedy:
            print(f"           do: {clean(finding.remedy)}")


def reap_leftovers(*, yes: bool, grace_s: float, runs: str | None, as_json: bool) -> int:
    """Show what earlier runs left, ask, end it; the exit code.

    Raises:
        UsageError: there is nobody to ask.
        StorageError: what is done could not be recorded; nothing was ended.
    """
    from holdfast.agent import reaper

    from .runs import list_roots

    within = None if runs is None else os.path.abspath(runs)
    # All roots, also when only one is looked at: a live run of another one may have been started inside an ended run.
    seen = reaper.find_leftovers(roots=list_roots(), within=within)
    if not as_json:
        _show(seen)
    done: tuple[Reaped, ...] = ()
    if seen.found:
        _confirm(len(seen.found), yes=yes, as_json=as_json)
        done = reaper.reap(seen.found, grace_s=grace_s)
    alive = [end for end in done if end.outcome == "alive"]
    code = StillAlive.exit_code if alive else 0
    if as_json:
        print_json({"leftovers": seen.found, "spared": seen.spared, "done": done, "exit_code": code})
    for end in () if as_json else done:
        print(f"{end.leftover.process.pid}: {end.outcome}" + (f" ({clean(end.words)})" if end.words else ""))
    return code


def _show(seen: Leftovers) -> None:
    if seen.found:
        rows = [
            (one.process.pid, one.run_id, one.ended_as, format_duration(one.age_s), one.command) for one in seen.found
        ]
        table(("pid", "run", "ended", "age", "command"), rows, right=(0,))
    else:
        print("no ended run of this account has a living process")
    for other in seen.spared:
        note(f"left alone: process {other.pid} with the marker of {other.run_id}: {other.why}")


def _confirm(count: int, *, yes: bool, as_json: bool) -> None:
    if yes:
        return
    if as_json or sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"nothing was ended ({count} found): there is no terminal to ask on", hint="say --yes")
    click.confirm(f"End {'this process' if count == 1 else f'these {count} processes'}?", abort=True)
