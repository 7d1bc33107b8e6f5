"""One rehearsal of a job as a record: made in a directory of its own, told without the logged values."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping

from holdfast.core.drill.drill import AttemptTrail, DrillVerdict
from holdfast.host.files import files
from holdfast.model.errors import NotPermitted, StorageError, UsageError
from holdfast.model.job import JobSpec

from .drill import Drill, Rehearsal
from .report import AttemptLine, DrillReport, DrillRequest

EXIT_NOT_SO = 1
"""The script was rehearsed, and it does not continue exactly, or that could not be told."""


def rehearse_job(
    spec: JobSpec,
    wanted: DrillRequest,
    *,
    inexact: bool,
    keep: str | None,
    tell: Callable[[str], None],
    interrupted: Callable[[], bool],
    environ: Mapping[str, str] = os.environ,
) -> DrillReport:
    """Run a job undisturbed, then with interruptions, and compare; `keep` is a new directory for both runs.

    `inexact` accepts values that differ, if only the steps continue. `tell` hears how far it has come. `environ` is
    what the job's environment is made from.

    Raises:
        UsageError, NotPermitted, StorageError: `keep` cannot be used.
        HoldfastError: the job cannot be started.
    """
    with _place(keep, tell) as directory:
        drill = Drill(
            spec,
            wanted,
            root=f"{directory}/runs",
            environ=environ,
            argv=sys.argv,
            tell=tell,
            interrupted=interrupted,
        )
        rehearsal = drill.run()
        return _describe(rehearsal, inexact=inexact, kept=None if keep is None else directory)


def _describe(rehearsal: Rehearsal, *, inexact: bool, kept: str | None) -> DrillReport:
    judgement = rehearsal.judgement
    passed = judgement.passed or (inexact and judgement.verdict is DrillVerdict.INEXACT)
    return DrillReport(
        verdict=judgement.verdict.name.lower(),
        words=judgement.verdict.value,
        why=judgement.why,
        passed=judgement.passed,
        lines=tuple(judgement.lines),
        steps_done_again=judgement.redone,
        compared=judgement.compared,
        judged_by=rehearsal.source,
        cut=rehearsal.cut,
        planned=rehearsal.planned,
        reference=_describe_trail(rehearsal.reference),
        attempts=tuple(_describe_trail(trail) for trail in rehearsal.trails),
        kept=kept,
        exit_code=0 if passed else EXIT_NOT_SO,
    )


def _describe_trail(trail: AttemptTrail) -> AttemptLine:
    return AttemptLine(
        attempt=trail.attempt,
        end=trail.end,
        first_step=trail.first,
        last_step=trail.last,
        newest_checkpoint_before=trail.durable,
        exit_code=trail.exit_code,
        seconds=round(trail.seconds, 3),
        steps_logged=len(trail.rows),
        checkpoints_seen=tuple(sorted(trail.prints)),
        stop=dict(trail.stop),
        last_words=trail.words,
    )


@contextlib.contextmanager
def _place(keep: str | None, tell: Callable[[str], None]) -> Iterator[str]:
    """A directory for both runs, of this account only: the one that is to be kept, or one that goes at the end."""
    if keep is not None:
        yield _make_place(os.path.abspath(os.path.expanduser(keep)))
        return
    directory = tempfile.mkdtemp(prefix="holdfast-drill-")
    try:
        yield directory
    finally:
        files.remove_tree(directory)
        if os.path.lexists(directory):
            tell(f"not all of {directory} could be removed")


def _make_place(path: str) -> str:
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        facts, names = os.lstat(path), os.listdir(path)
    except OSError as error:
        raise StorageError(f"--keep {path}: {error.strerror}", hint="name a directory that can be made") from error
    if facts.st_uid != os.geteuid():
        raise NotPermitted(f"--keep {path} belongs to another account", hint="name one of your own")
    if names:
        raise UsageError(f"--keep {path} is not empty", hint="name a new directory")
    return path
