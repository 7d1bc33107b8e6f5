"""What is refused before anything is handed in: what can be seen now to never work, or to destroy another's results.

Only what is cheap and certain. Everything else is the preflight's of each run, when it comes up: files that a cell
reads may be made by a cell before it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.model.errors import UsageError
from holdfast.model.queue import ACTIVE_STATES, WAITING_STATES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.core.rules import Rules
    from holdfast.model.finding import Finding
    from holdfast.model.job import JobSpec
    from holdfast.model.queue import Cell, NewCell, Submission
    from holdfast.store.queue import Queue

MOST_PROBLEMS = 10
MOST_PROGRAMS = 200
"""So many different programs of one submission are looked for; a file of commands has a handful."""
CARDS_WITHIN_S = 2.0
MOST_NEW = 20
"""Cells of one submission that are held against those that are there already."""
MOST_NEIGHBOURS = 200
HINT = "nothing was handed in"


def check_cells(
    spec: JobSpec,
    cells: Sequence[NewCell],
    environ: Mapping[str, str],
    *,
    lean: bool = False,
    shared: Sequence[str] = (),
) -> list[str]:
    """Refuse what cannot work; sentences about what could not be looked at.

    Raises:
        UsageError: something cannot work; all mistakes (up to ten) are in the message.
        StorageError: the rules file cannot be read.
    """
    from holdfast.agent.create import refuse_secrets
    from holdfast.host.rulesfile import read_rules

    rules = read_rules(environ)
    refuse_secrets(spec)
    refuse(list(_find_secrets(cells)))
    programs = _find_programs(spec, cells)
    problems = _unique(problem for program in programs for problem in _check_program(program, rules, environ))
    if lean:
        from holdfast.agent.queueing.lean_jobs import refuse as refuse_lean

        problems += [f"--lean: {words}" for words in refuse_lean(spec)]
    impossible, notes = _check_cards(spec, rules)
    problems += impossible
    if len(cells) > 1:
        problems += _find_collisions(spec, cells, shared)
    refuse(problems)
    return notes


def refuse(problems: Sequence[str]) -> None:
    """Raise when there are problems.

    Raises:
        UsageError: with the first ten of them.
    """
    if not problems:
        return
    shown = list(problems[:MOST_PROBLEMS])
    if len(problems) > MOST_PROBLEMS:
        shown.append(f"and {len(problems) - MOST_PROBLEMS} more")
    raise UsageError("\n".join(shown), hint=HINT, details={"problems": list(problems)})


def _find_secrets(cells: Sequence[NewCell]) -> Iterable[str]:
    """Where a cell of its own holds what looks like a secret: never the value."""
    from holdfast.core.redact import is_secret_name, is_secret_value, redact_argv

    for cell in cells:
        command, env = cell.change.get("command"), cell.change.get("env")
        places = list(redact_argv(tuple(map(str, command)))[1]) if isinstance(command, (list, tuple)) else []
        if isinstance(env, dict):
            places += [
                f"env {name}" for name, text in env.items() if is_secret_name(name) or is_secret_value(text, name)
            ]
        if places:
            yield f"{cell.name} holds what looks like a secret: {', '.join(places)}; export it instead"


def _unique(problems: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(problems))


def _find_programs(spec: JobSpec, cells: Sequence[NewCell]) -> Iterable[JobSpec]:
    """The job once for each program, script and place that its cells name."""
    seen = set()
    for cell in cells:
        command = cell.change.get("command")
        words = tuple(str(word) for word in command) if isinstance(command, (list, tuple)) else spec.command
        env = cell.change.get("env")
        workdir = str(cell.change.get("workdir") or spec.workdir)
        path = str(env.get("PATH", "")) if isinstance(env, dict) else ""
        key = (words[:2], workdir, path)
        if key in seen:
            continue
        seen.add(key)
        if len(seen) > MOST_PROGRAMS:
            return
        variables = {str(k): str(v) for k, v in env.items()} if isinstance(env, dict) else spec.env
        yield replace(spec, command=words, workdir=workdir, env=variables)


def _check_program(spec: JobSpec, rules: Rules, environ: Mapping[str, str]) -> Iterable[str]:
    from holdfast.agent.checks import command
    from holdfast.agent.checks.situation import Situation
    from holdfast.model.finding import Level

    situation = Situation(spec, rules, environ)
    for check in (command.check_workdir, command.check_command, command.check_script):
        for finding in check(situation):
            if finding.level is Level.FAIL:
                yield _describe(finding)
                # A working directory that is not there makes everything else wrong, too.
                return


def _describe(finding: Finding) -> str:
    do = f" ({finding.remedy})" if finding.remedy else ""
    return f"{finding.id} {finding.subject}: {finding.evidence}{do}"


def _check_cards(spec: JobSpec, rules: Rules) -> tuple[list[str], list[str]]:
    """What no card of this box can give, and sentences about cards that could not be read."""
    if not spec.gpus.wanted:
        return [], []
    from holdfast.core.packing import find_impossible
    from holdfast.host.gpus import read_inventory

    inventory = read_inventory(CARDS_WITHIN_S)
    notes = []
    if not inventory.complete:
        why = inventory.reason or "the driver gave no whole answer"
        notes.append(f"whether this box can ever give these cards was not checked: {why}")
    return list(find_impossible(spec, inventory, rules)), notes


def _find_collisions(spec: JobSpec, cells: Sequence[NewCell], shared: Sequence[str]) -> list[str]:
    from holdfast.core.cells import find_collisions
    from holdfast.model import wire

    base = wire.encode(spec)
    jobs = [{**base, **cell.change} for cell in cells]
    return find_collisions(jobs, [cell.name for cell in cells], shared=shared)


def check_neighbours(queue: Queue, submission: Submission, *, shared: Sequence[str] = ()) -> None:
    """Refuse a cell that would write where an open cell of the queue writes, unless it only starts after that one.

    Of a submission with many cells, or a queue with very many open ones, this is left to the runs themselves.

    Raises:
        UsageError: names both cells and the place.
    """
    from holdfast.core.cells import find_collisions, find_outputs

    jobs = {cell.name: {**submission.base, **cell.change} for cell in submission.cells[: MOST_NEW + 1]}
    writing = {name: job for name, job in jobs.items() if next(iter(find_outputs(job)), None) is not None}
    if not writing or len(jobs) > MOST_NEW:
        return
    states = WAITING_STATES | ACTIVE_STATES
    passed = _find_earlier(queue, submission)
    problems = []
    for other in queue.cells(states=states, limit=MOST_NEIGHBOURS):
        if other.id in passed or (other.group == submission.group and other.name in jobs):
            continue
        stored = queue.submission_of(other.id)
        theirs = {**stored.base, **stored.cells[0].change}
        for name, job in writing.items():
            found = find_collisions([job, theirs], [name, f"{other.label} ({other.state.value})"], shared=shared)
            problems += [f"{words}; or start it afterwards: --after {other.group}/{other.name}" for words in found]
    refuse(problems)


def _find_earlier(queue: Queue, submission: Submission) -> set[int]:
    """Ids of open cells that must be proven done before any of these starts."""
    needs = {need for cell in submission.cells for need in cell.needs}
    todo: list[Cell] = []
    for need in needs:
        # A need without a group is one of the same group.
        word = need if "/" in need else f"{submission.group}/{need}"
        with contextlib.suppress(UsageError):
            todo += queue.find([word])
    found: set[int] = set()
    while todo:
        cell = todo.pop()
        if cell.id not in found:
            found.add(cell.id)
            todo += queue.needs_of(cell.id) if cell.open_needs else ()
    return found


def hash_files(spec: JobSpec, cells: Sequence[NewCell]) -> dict[str, str]:
    """SHA-256 by path of the configuration, the entry scripts and the lock file as they are now.

    A file that cannot be read has an empty hash: whatever it is later counts as changed.
    """
    from holdfast.host.snapshot import LOCK_NAMES, find_repository, find_upwards, hash_file

    paths = {spec.config} | {find_upwards(spec.workdir, LOCK_NAMES, stop=find_repository(spec.workdir))}
    known: dict[str, bool] = {}
    for cell in cells:
        paths.add(_find_entry(spec, cell, known))
        config = cell.change.get("config")
        paths.add(config if isinstance(config, str) else None)
    found = {}
    for path in sorted(path for path in paths if path is not None)[:MOST_PROGRAMS]:
        try:
            found[path] = hash_file(path)
        except OSError:
            found[path] = ""
    return found


def _find_entry(spec: JobSpec, cell: NewCell, known: dict[str, bool]) -> str | None:
    """The first file that a command names, as the run's snapshot takes it; a program that is found by PATH is none."""
    command = cell.change.get("command")
    words = command if isinstance(command, (list, tuple)) else spec.command
    workdir = str(cell.change.get("workdir") or spec.workdir)
    for index, word in enumerate(words):
        if index == 0 and "/" not in str(word):
            continue
        path = os.path.join(workdir, str(word))
        if path not in known:
            known[path] = os.path.isfile(path)
        if known[path] and (index > 0 or _is_script(path)):
            return path
    return None


def _is_script(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False
