"""``holdfast restart``: stop, verified empty, then the next attempt, with what is to change of the job."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from holdfast.agent.caller import describe_caller
from holdfast.agent.checks.preflight import refuse_bad_restart
from holdfast.agent.control.hangup import hold_hangups
from holdfast.agent.control.job.change import build_change, find_changes, find_edited_file, read_recorded_job
from holdfast.agent.control.job.code import find_code_changes, find_code_moved, names_other_files
from holdfast.agent.control.job.live_limits import refuse_low_memory
from holdfast.agent.control.restart import describe_begin, describe_resume, restart_run
from holdfast.agent.place.carried.change import read_change, resolve_change_order
from holdfast.agent.queue.change.restarted import notify_queue
from holdfast.agent.view.live.attempt import read_followed
from holdfast.agent.view.live.start import prove_start
from holdfast.agent.view.live.summary import count_artifacts
from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.source_change import read_origin
from holdfast.cli.attach import follow_run
from holdfast.cli.consent import confirm
from holdfast.cli.duration_option import parse_duration_option
from holdfast.cli.job.config_syntax import refuse_bad_configs
from holdfast.cli.job.options import JobCommand, asks_slurm, resolve_change
from holdfast.cli.job.restart_options import restart_options
from holdfast.cli.named_run import find_own
from holdfast.cli.render import clean, keep_done, note, print_record
from holdfast.cli.render.job_change import describe_changes
from holdfast.cli.render.start import describe_start
from holdfast.cli.render.stop import StopReporter
from holdfast.desk.caller import CALLER
from holdfast.model import wire
from holdfast.model.errors import ResourceBusy, UsageError
from holdfast.model.record import record
from holdfast.model.run import Outcome
from holdfast.model.units import format_count

from . import SUMMARIES

if TYPE_CHECKING:
    from holdfast.agent.control.restart import Restarted
    from holdfast.agent.view.run_view import RunView
    from holdfast.model.job import JobSpec
    from holdfast.model.origin import KeyChange

EPILOG = """\b
holdfast restart digits                            the same again
holdfast restart digits --limit-memory 8GB         with more memory, from its last checkpoint
holdfast restart digits --timeout 12h --env EPOCHS=40
holdfast restart digits -- python train.py --lr 0.01    options of the script: behind --, with the whole command
holdfast restart digits --job job.yaml             as the job file says now"""


@record
class PlannedRestart:
    """What a restart would change: keys of the job, and words about files that are not what the last attempt had.

    `code_moved` says in words that the repository is not in the state that the last attempt was begun in,
    `code_unknown` what of its state could not be told.
    """

    run_id: str
    changed: tuple[KeyChange, ...]
    files_changed: tuple[str, ...]
    code_moved: str = ""
    code_unknown: str = ""


@click.command(cls=JobCommand, short_help=SUMMARIES["restart"], epilog=EPILOG)
@restart_options
def command(  # noqa: PLR0913 - its options
    *,
    run: str,
    follow: bool,
    job: str | None,
    wait: str | None,
    recorded: bool,
    no_code: bool,
    runs: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    command: tuple[str, ...],
    **options: object,
) -> int:
    """Stop RUN if it lives, verify that nothing of it is left, and start the same command as its next attempt.

    The new attempt has the run's job, code snapshot, artifacts and checkpoints; its environment is made from the one of
    this command. Options change the job for this attempt and all after it; what changed is recorded, and `show` has it.
    With --job the job is what that file says now; options of the first command are not repeated. Earlier attempts stay
    as they are. There are never two trees at once.

    At a place FILE is read at this desk, and the code stays what the run was begun with: where another one is here now
    that is refused, and --no-code takes up the job alone.

    Nothing is stopped for what would not start: every check of a start comes first (78, see `holdfast preflight`), the
    smoke test with them, and whether RUN uses more memory now than a new --limit-memory. RUN's own cards count as free;
    where others are taken, or somebody stands in line for those of RUN (75), --gpu-wait has it wait for its turn.

    A script, configuration or lock file that was changed since the last attempt is named and run as it is now;
    --recorded runs the copy of a shell script instead, and refuses where another of these files was changed. Modules
    that a program imports are run as they are now, always: where the commit or the changes since are other ones, that
    is said, and recorded with the attempt.

    Where RUN succeeded and left files in artifacts/, which its next attempt may overwrite, that is asked first; --yes
    asks nothing.

    A run of Slurm is handed in again once it is over; one whose job waits or runs is refused.
    """
    if no_code and not CALLER.order:
        raise UsageError("--no-code is for --job and a run at a place", hint="leave it out")
    found = find_own(run, runs)
    before = read_recorded_job(found.run_dir)
    asked = _resolve(found.run_dir, before.spec, job, command, options)
    origin = read_origin(found.run_dir)
    scheduled = bool(origin.get("scheduler"))
    if asks_slurm(options) and not scheduled:
        raise UsageError(f"--slurm is for runs of Slurm, and {found.run_id} is none", hint="leave it out")
    changed = find_changes(before, asked)
    if recorded and names_other_files(before.spec, asked):
        raise UsageError("--recorded runs what the last attempt ran", hint="leave it out, or what changes the command")
    # Like a start: what does not parse, or is not there, stops nothing that runs.
    refuse_bad_configs((asked.config,))
    _ask_about_results(found.run_dir, dry_run=dry_run, yes=yes, as_json=as_json)
    if not scheduled:
        refuse_low_memory(found.run_dir, before.spec, asked)
        # What a node has, this machine need not have.
        refuse_bad_restart(
            found.run_dir,
            asked,
            os.environ,
            recorded=recorded,
            dry_run=dry_run,
            tell=lambda: None if as_json else note("checking whether it can start; nothing is stopped yet"),
        )
    if job is None and (edited := find_edited_file(before)):
        note(f"{edited} has changed since; --job {edited} takes it up")
    if CALLER.place is not None and job is None and origin.get("code") and not as_json:
        # At the desk it may have been mended meanwhile, and nobody there looks.
        code = f"holdfast run --like {found.run_id} --workdir ."
        note(f"its code is the one that was sent; with the code of this directory: {code}")
    if dry_run:
        view = observe_run(found.run_dir)
        if view.find_unreadable(wire.STATE):
            note(view.note)
        if asked.smoke and not scheduled:
            note("a dry run does not try the smoke test")
        anew = names_other_files(before.spec, asked)
        files = tuple(change.words for change in find_code_changes(found.run_dir, anew=anew, recorded=recorded))
        moved, unknown = find_code_moved(found.run_dir, asked, os.environ)
        _print_changes(PlannedRestart(found.run_id, changed, files, moved, unknown), as_json=as_json)
        if not as_json:
            stops = f"stop attempt {view.attempt}, which is {view.condition}, and " if not view.over else ""
            number = max(view.attempts, default=0) + 1
            note(f"it would {stops}begin attempt {number}{describe_begin(view)}")
        return 0
    job_file = None if CALLER.order else job
    wait_s = parse_duration_option(wait, "--wait")
    # A link or a terminal that ends meanwhile leaves no run that is stopped and not started again.
    with hold_hangups():
        made = restart_run(
            found.run_dir,
            environ=os.environ,
            by=describe_caller(),
            wait_s=wait_s,
            tell=StopReporter(quiet=as_json),
            change=lambda: build_change(found.run_dir, before, asked, by=describe_caller(), job_file=job_file),
            recorded=recorded,
        )
        keep_done(f"{made.run_id} was started again; holdfast show {made.run_id} says where it stands")
        notes = notify_queue(found.run_dir)
    for text in notes:
        note(text)
    answer = _follow if follow else _tell_begun
    return answer(found.run_dir, made, as_json=as_json)


def _ask_about_results(run_dir: str, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """That a run succeeded is said; where it left results, whether its next attempt may write over them is asked."""
    view = observe_run(run_dir)
    if not view.over and CALLER.consent:
        raise _begun_meanwhile(view)
    if not view.over or view.condition != Outcome.SUCCEEDED.value:
        return
    number = max(view.attempts, default=0) + 1
    count = count_artifacts(run_dir)
    files = f", and attempt {number} may overwrite its {format_count(count, 'file')} in artifacts/" if count else ""
    said = f"{view.run_id} succeeded (attempt {view.attempt}){files}"
    note(f"{said}; a new run instead: holdfast run --like {view.run_id}")
    if count and not dry_run:
        confirm("Start it again?", yes=yes, as_json=as_json, refusal="nothing was started", plan=(said,))
        if not yes and not (now := observe_run(run_dir)).over:
            raise _begun_meanwhile(now)


def _begun_meanwhile(view: RunView) -> ResourceBusy:
    """The yes was to start again what had ended, and to stop nothing."""
    words = f"{view.run_id} was started again meanwhile, as attempt {view.attempt}: nothing was stopped"
    return ResourceBusy(words, hint=f"holdfast show {view.run_id}; the same command again stops it first")


def _tell_begun(run_dir: str, made: Restarted, *, as_json: bool) -> int:
    """Say how it stands once it runs, waits for cards, or was refused; a scheduler begins its runs later."""
    started = prove_start(run_dir, made.attempt, prove_s=0.0) if made.native_id is None else None
    if as_json:
        print_record(made)
    else:
        _tell_restarted(made)
        follow = f"follow: holdfast attach {made.run_id}    stop: holdfast stop {made.run_id}"
        for line in (follow,) if started is None else (*describe_start(started.state, made.run_id), *started.warnings):
            note(line)
    return (started.exit_code or 0) if started is not None else 0


def _follow(run_dir: str, made: Restarted, *, as_json: bool) -> int:
    _tell_restarted(made)
    code = follow_run(run_dir, made.attempt, quiet=as_json)
    if as_json:
        print_record(read_followed(run_dir, code, CALLER.place))
    return code


def _resolve(
    run_dir: str, before: JobSpec, job: str | None, command: tuple[str, ...], options: dict[str, object]
) -> JobSpec:
    """The job of the next attempt. A desk has read its job file already, with all options over it."""
    if CALLER.order:
        return resolve_change_order(read_change(CALLER.order), run_dir, before, os.environ)
    # A relative path that is typed at a desk counts from the run's own working directory.
    return resolve_change(before, job, command, options, cwd=before.workdir if CALLER.place is not None else None)


def _tell_restarted(made: Restarted) -> None:
    for line in describe_changes(made.changed):
        note(f"changed: {line}")
    where = describe_resume(made.checkpoint_step, found=made.checkpoint)
    begun = "was started again as" if made.native_id is None else f"is job {made.native_id} now, which begins it as"
    note(f"{made.run_id} {begun} attempt {made.attempt}{where}")
    for words in made.files_changed:
        as_it_was = " (as it was: restart --recorded)" if made.has_copies else ""
        uses = "what was recorded" if made.recorded else f"it as it is now{as_it_was}"
        note(f"{words}: attempt {made.attempt} uses {uses}")
    if made.code_moved:
        but = "; only copies are as they were recorded" if made.recorded else ""
        note(f"{made.code_moved}: attempt {made.attempt} runs what is there now{but}")
    if made.code_unknown:
        note(made.code_unknown)


def _print_changes(planned: PlannedRestart, *, as_json: bool) -> None:
    if as_json:
        print_record(planned)
        return
    for line in (*describe_changes(planned.changed), *planned.files_changed, *filter(None, [planned.code_moved])):
        print(clean(line))
    if not planned.changed and not planned.files_changed:
        note("nothing of the job would change")
    if planned.code_unknown:
        note(planned.code_unknown)
