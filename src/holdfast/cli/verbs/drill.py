"""``holdfast drill``: interrupt a script on purpose, and see whether it continues as if nothing had happened."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import JobCommand, job_options, resolve_job
from holdfast.cli.render import note, print_json
from holdfast.model.errors import NotPermitted, StorageError, UsageError

from . import SUMMARIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.agent.drill import Wanted
    from holdfast.model.job import JobSpec

EPILOG = """\b
holdfast drill job.yaml                                  three SIGKILLs at random steps
holdfast drill --kills 10 --seed 7 -- python train.py    ten, at other steps
holdfast drill --stop --time 2m job.yaml                 one of them a TERM; two minutes of each run
holdfast drill --checkpoint-every 20 -- python train.py  save often enough for a short rehearsal"""
EXIT_NOT_SO = 1
"""The script was rehearsed, and it does not continue exactly, or that could not be told."""


@click.command(cls=JobCommand, short_help=SUMMARIES["drill"], epilog=EPILOG)
@click.argument("job", required=False, type=click.Path())
@click.option("--kills", type=click.IntRange(1, 1000), default=3, show_default=True, metavar="N", help="How often.")
@click.option("--stop", is_flag=True, help="One of the interruptions is a TERM, as at a walltime or a preemption.")
@click.option("--drill-seed", type=int, default=0, show_default=True, metavar="N", help="Draws where to interrupt.")
@click.option(
    "--time", "time", default="5m", show_default=True, metavar="DURATION", help="How long the first run may be."
)
@click.option("--until", type=click.IntRange(min=1), metavar="STEP", help="Stop the first run at this step.")
@click.option("--inexact", is_flag=True, help="Accept values that differ, if only the steps continue.")
@click.option("--keep", metavar="DIR", type=click.Path(), help="Keep both runs in this new directory.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@job_options
def command(  # noqa: PLR0913 - its options
    *,
    job: str | None,
    command: tuple[str, ...],
    kills: int,
    stop: bool,
    drill_seed: int,
    time: str,
    until: int | None,
    inexact: bool,
    keep: str | None,
    as_json: bool,
    **options: object,
) -> int:
    """Rehearse a job: run it once undisturbed, then again with SIGKILLs at random points, and compare.

    After each kill the same command is started again, as `holdfast restart` does. Compared are the steps, every value
    logged with `run.log`, and the states in the checkpoints, bit for bit. A job that takes longer than --time is
    stopped there, and compared up to there. Both runs are made in a directory of their own, which is removed at the
    end: what the script writes elsewhere, it writes there twice.

    Exit code 0: it continues exactly. 1: it does not, or that could not be told; the verdict says what. Other codes:
    the job could not be started, as with `holdfast run`.
    """
    from holdfast.agent.drill import Wanted

    spec = resolve_job(job, command, options)
    wanted = Wanted(kills=kills, stop=stop, seed=drill_seed, time_s=_read_time(time), until=until)
    with _place(keep) as directory, _interruptible() as interrupted:
        return _rehearse(spec, wanted, directory, interrupted, inexact=inexact, as_json=as_json, kept=keep is not None)


def _read_time(text: str) -> float:
    from holdfast.model.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--time: {error}", hint="write it like 90s or 5m") from error


def _rehearse(
    spec: JobSpec,
    wanted: Wanted,
    directory: str,
    interrupted: Callable[[], bool],
    *,
    inexact: bool,
    as_json: bool,
    kept: bool,
) -> int:
    from holdfast.agent.drill import Drill
    from holdfast.cli.drill_showing import encode_rehearsal, print_rehearsal
    from holdfast.core.drilling import Verdict

    tell = (lambda _: None) if as_json else note
    drill = Drill(
        spec, wanted, root=f"{directory}/runs", environ=os.environ, argv=sys.argv, tell=tell, interrupted=interrupted
    )
    rehearsal = drill.run()
    verdict = rehearsal.judgement.verdict
    passed = rehearsal.judgement.passed or (inexact and verdict is Verdict.INEXACT)
    code = 0 if passed else EXIT_NOT_SO
    if as_json:
        print_json({**encode_rehearsal(rehearsal), "kept": directory if kept else None, "exit_code": code})
        return code
    print_rehearsal(rehearsal)
    if kept:
        note(f"both runs are in {directory}/runs")
    elif code:
        note("to look at the runs, rehearse again with --keep DIR")
    return code


@contextlib.contextmanager
def _place(keep: str | None) -> Iterator[str]:
    """A directory for both runs, of this account only: the one that is to be kept, or one that goes at the end."""
    import shutil
    import tempfile

    if keep is not None:
        yield _make_place(os.path.abspath(os.path.expanduser(keep)))
        return
    directory = tempfile.mkdtemp(prefix="holdfast-drill-")
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if os.path.lexists(directory):
            note(f"not all of {directory} could be removed")


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


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """TERM and HUP set a flag while a rehearsal runs, so that what it has started is ended before it leaves."""
    seen: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: seen.append(number))
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
