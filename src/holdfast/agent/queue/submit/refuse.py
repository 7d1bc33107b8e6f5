"""What is refused before anything is handed in: what can be seen now to never work, or to destroy another's results.

Only what is cheap and certain. Everything else is the preflight's of each run, when it comes up: files that a job
reads may be made by a job before it.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

from holdfast.agent.checks import command, inputs
from holdfast.agent.checks.context import CheckContext
from holdfast.core.cards.packing import ASK_FOR_LESS, find_impossible
from holdfast.core.container.references import looks_like_file
from holdfast.core.job.job_paths import is_own
from holdfast.core.job.nodes import refuse_nodes
from holdfast.core.job.setup import put_setup_first
from holdfast.core.queue.identity import find_collisions, find_outputs
from holdfast.core.refuse_secrets import find_job_secrets, refuse_secrets
from holdfast.host.clock import monotonic_s
from holdfast.host.files.rules_file import read_rules
from holdfast.host.files.snapshot import (
    LOCK_NAMES,
    MOST_SCRIPTS,
    SCRIPT_ENDS,
    find_repository,
    find_upwards,
    hash_file,
    is_script,
)
from holdfast.host.gpu.inventory import read_inventory
from holdfast.model import wire
from holdfast.model.errors import UsageError
from holdfast.model.finding import Level
from holdfast.model.job import JobSpec
from holdfast.model.queue import ACTIVE_STATES, WAITING_STATES
from holdfast.model.record import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.core.rules.rules import Rules
    from holdfast.model.finding import Finding
    from holdfast.model.queue import NewJob, QueuedJob, Submission
    from holdfast.store.queue.queue import Queue

MOST_PROBLEMS = 10
MOST_PROGRAMS = 200
"""So many different programs of one submission are looked for; a file of commands has a handful."""
CARDS_WITHIN_S = 2.0
IN_CONTAINER = ("container", "data")
"""What a job of its own may have otherwise that its container is judged by."""
IMAGES_WITHIN_S = 20.0
MOST_NEW = 20
"""Jobs of one submission that are held against those that are there already."""
MOST_NEIGHBOURS = 200
MAY_COME = frozenset({"image", "container.binds"})
"""Findings about what another job, or a person, may have put there by the time a job starts."""
HINT = "nothing was handed in"


def check_jobs(
    spec: JobSpec,
    jobs: Sequence[NewJob],
    environ: Mapping[str, str],
    *,
    shared: Sequence[str] = (),
    merged: Sequence[Mapping[str, object]] | None = None,
    scheduler: str = "",
) -> list[str]:
    """Refuse what cannot work; sentences about what could not be looked at. A `scheduler` has cards of its own.

    `merged` are the encoded jobs of which the output paths are compared (None: `spec` with each job's own fields).

    Raises:
        UsageError: something cannot work; all mistakes (up to ten) are in the message.
        StorageError: the rules file cannot be read.
    """
    rules = read_rules(environ)
    refuse_secrets(spec)
    refuse_nodes(spec, scheduler)
    raise_problems([f"{sentence}; export it instead" for sentence in find_job_secrets(jobs)])
    first: dict[str, str] = {}
    for name, program in _find_programs(spec, jobs):
        for problem in _check_program(program, rules, environ):
            first.setdefault(problem, name)
    problems = list(first)
    impossible, notes = ([], []) if scheduler else _check_cards(spec, rules)
    refused, later = _check_images(spec, jobs, rules, environ)
    problems, notes = [*problems, *refused], [*notes, *later]
    problems += [f"{each} ({ASK_FOR_LESS})" for each in impossible]
    if len(jobs) > 1:
        base = {} if merged is not None else wire.encode(spec)
        specs = [{**base, **job.change} for job in jobs] if merged is None else merged
        problems += find_collisions(specs, [job.name for job in jobs], shared=shared)
    raise_problems(problems, first)
    return notes


def raise_problems(problems: Sequence[str], jobs: Mapping[str, str] | None = None) -> None:
    """Raise when there are problems; `jobs` names of some the first job that has it, for who knows where that stands.

    Raises:
        UsageError: with the first ten of them.
    """
    if not problems:
        return
    shown = list(problems[:MOST_PROBLEMS])
    if len(problems) > MOST_PROBLEMS:
        shown.append(f"and {len(problems) - MOST_PROBLEMS} more")
    raise UsageError(
        "\n".join(shown), hint=HINT, details={"problems": list(problems), **({"jobs": dict(jobs)} if jobs else {})}
    )


def _unique(problems: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(problems))


def _find_programs(spec: JobSpec, jobs: Sequence[NewJob]) -> Iterable[tuple[str, JobSpec]]:
    """The base job once for each program, script and place that the jobs made from it name, with the first of these."""
    seen = set()
    for job in jobs:
        command = job.change.get("command")
        words = tuple(str(word) for word in command) if isinstance(command, (list, tuple)) else spec.command
        env = job.change.get("env")
        workdir = str(job.change.get("workdir") or spec.workdir)
        path = str(env.get("PATH", "")) if isinstance(env, dict) else ""
        key = (words[:2], workdir, path)
        if key in seen:
            continue
        seen.add(key)
        if len(seen) > MOST_PROGRAMS:
            return
        variables = {str(k): str(v) for k, v in env.items()} if isinstance(env, dict) else spec.env
        yield job.name, replace(spec, command=words, workdir=workdir, env=variables)


def _check_program(spec: JobSpec, rules: Rules, environ: Mapping[str, str]) -> Iterable[str]:
    situation = CheckContext(put_setup_first(spec), rules, environ)
    for check in (command.check_workdir, command.check_command, command.check_script):
        for finding in check(situation):
            if finding.level is Level.FAIL:
                yield _describe(finding)
                # A working directory that is not there makes everything else wrong, too.
                return


def _check_images(
    spec: JobSpec, jobs: Sequence[NewJob], rules: Rules, environ: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """As `_check_image`, once for each container that the jobs are in: those of a sweep may have their own."""
    changes: dict[str, dict[str, object]] = {}
    for job in jobs:
        change = {key: job.change[key] for key in IN_CONTAINER if key in job.change}
        changes[json.dumps(wire.encode(change), sort_keys=True)] = change
    base = wire.encode(spec) if any(changes.values()) else {}
    refused: list[str] = []
    later: list[str] = []
    end = monotonic_s() + IMAGES_WITHIN_S
    for index, change in enumerate(changes.values()):
        one = wire.decode(JobSpec, {**base, **change}) if change else spec
        if one.container.image is None:
            continue
        if index and monotonic_s() > end:
            later.append(f"not all images were looked at within {IMAGES_WITHIN_S:g} s; each run does it when it starts")
            break
        found = _check_image(one, rules, environ)
        refused, later = [*refused, *found[0]], [*later, *found[1]]
    return refused, _unique(later)


def _check_image(spec: JobSpec, rules: Rules, environ: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """What of a container no start can take, and sentences about an image that is not to be had now: it may come."""
    image = spec.container.image or ""
    if looks_like_file(image) and not is_own(image):
        return [], []  # of an ordered job it is in the tree that is being sent
    failed = [one for one in inputs.check_image(CheckContext(spec, rules, environ)) if one.level is Level.FAIL]
    refused = [_describe(one) for one in failed if one.id not in MAY_COME]
    later = [f"it would be refused if it started now: {_describe(one)}" for one in failed if one.id in MAY_COME]
    return refused, later


def _describe(finding: Finding) -> str:
    do = f" ({finding.remedy})" if finding.remedy else ""
    return f"{finding.id} {finding.subject}: {finding.evidence}{do}"


def _check_cards(spec: JobSpec, rules: Rules) -> tuple[list[str], list[str]]:
    """What no card of this box can give, and sentences about cards that could not be read."""
    if not spec.gpus.wanted:
        return [], []

    inventory = read_inventory(CARDS_WITHIN_S)
    notes = []
    if not inventory.complete:
        why = inventory.reason or "the driver gave no whole answer"
        notes.append(f"whether this box can ever give these cards was not checked: {why}")
    return list(find_impossible(spec, inventory, rules)), notes


def merge_job(submission: Submission, job: NewJob) -> dict[str, object]:
    """A job of a submission as it is compared with others: with the directory in which its relative paths will be.

    Of a job that a desk ordered that is its run's own, which has no name yet, or the tree that it shares.
    """
    spec = {**submission.base, **job.change}
    ordered, workdir = submission.ordered, str(spec.get("workdir"))
    if ordered is None or is_own(workdir):
        return spec
    code = ordered.code
    shared = ordered.shares_tree and code is not None
    place = f"{code.tree}/{code.workdir}" if code is not None and shared else f"{submission.group}/{job.name}"
    return {**spec, "workdir": f"{submission.runs_root}/.code/{place}"}


def check_neighbours(queue: Queue, submission: Submission, *, shared: Sequence[str] = ()) -> None:
    """Refuse a job that would write where an open job of the queue writes, unless it only starts after that one.

    Of a submission with many jobs, or a queue with very many open ones, this is left to the runs themselves.

    Raises:
        UsageError: names both jobs and the place.
    """
    specs = {job.name: merge_job(submission, job) for job in submission.jobs[: MOST_NEW + 1]}
    writing = {name: spec for name, spec in specs.items() if next(iter(find_outputs(spec)), None) is not None}
    if not writing or len(specs) > MOST_NEW:
        return
    states = WAITING_STATES | ACTIVE_STATES
    passed = _find_earlier(queue, submission)
    problems = []
    for other in queue.jobs(states=states, limit=MOST_NEIGHBOURS):
        if other.id in passed or (other.group == submission.group and other.name in specs):
            continue
        stored = queue.submission_of(other.id)
        theirs = merge_job(stored, stored.jobs[0])
        for name, spec in writing.items():
            found = find_collisions([spec, theirs], [name, f"{other.label} ({other.state.value})"], shared=shared)
            # What waits for the cancelled job of this name waits for this one from now on.
            if found and (submission.group, name) not in _list_awaited(queue, other):
                problems += [f"{words}; or start it afterwards: --after {other.group}/{other.name}" for words in found]
    raise_problems(problems)


def _find_earlier(queue: Queue, submission: Submission) -> set[int]:
    """Ids of open jobs that must be proven done before any of these starts."""
    needs = {need for job in submission.jobs for need in job.needs}
    jobs: list[QueuedJob] = []
    for need in needs:
        # A need without a group is one of the same group.
        word = need if "/" in need else f"{submission.group}/{need}"
        with contextlib.suppress(UsageError):
            jobs += queue.find([word])
    return {job.id for job in _follow_needs(queue, jobs)}


def _list_awaited(queue: Queue, job: QueuedJob) -> set[tuple[str, str]]:
    """Groups and names of what must be proven done before a job starts."""
    return {(need.group, need.name) for need in _follow_needs(queue, [job])} - {(job.group, job.name)}


def _follow_needs(queue: Queue, jobs: Sequence[QueuedJob]) -> list[QueuedJob]:
    """These jobs, and what they need that is not done, and what that needs."""
    todo = [*jobs]
    found: dict[int, QueuedJob] = {}
    while todo:
        job = todo.pop()
        if job.id not in found:
            found[job.id] = job
            todo += queue.needs_of(job.id) if job.open_needs else ()
    return [*found.values()]


def hash_files(spec: JobSpec, jobs: Sequence[NewJob]) -> dict[str, str]:
    """SHA-256 by path of the configuration, the entry scripts and the lock file as they are now.

    A file that cannot be read has an empty hash: whatever it is later counts as changed.
    """
    paths = {spec.config} | {find_upwards(spec.workdir, LOCK_NAMES, stop=find_repository(spec.workdir))}
    known: dict[str, bool] = {}
    for job in jobs:
        paths |= set(_find_entries(spec, job, known))
        config = job.change.get("config")
        paths.add(config if isinstance(config, str) else None)
    found = {}
    for path in sorted(path for path in paths if path is not None)[:MOST_PROGRAMS]:
        try:
            found[path] = hash_file(path)
        except OSError:
            found[path] = ""
    return found


def _find_entries(spec: JobSpec, job: NewJob, known: dict[str, bool]) -> list[str]:
    """The first file that a command names, and the scripts behind it, as the run's snapshot takes them.

    A program that is found by PATH is none.
    """
    command = job.change.get("command")
    words = command if isinstance(command, (list, tuple)) else spec.command
    workdir = str(job.change.get("workdir") or spec.workdir)
    found: list[str] = []
    for index, word in enumerate(map(str, words)):
        if (index == 0 and "/" not in word) or (found and not word.endswith(SCRIPT_ENDS)):
            continue
        path = os.path.join(workdir, word)
        if path not in known:
            known[path] = os.path.isfile(path)
        if known[path] and (index > 0 or is_script(path)):
            found.append(path)
    return found[: 1 + MOST_SCRIPTS]
