"""``holdfast diagnose``: why did it end, or why does it not go on."""

from __future__ import annotations

import sys

import click

from holdfast.agent.view.find import FoundRun, find_run, require_readable
from holdfast.agent.view.page.diagnosis import DiagnosisReport, describe_retry, diagnose_pid, diagnose_run, find_silence
from holdfast.cli.completion import complete_runs
from holdfast.cli.path_type import PATH
from holdfast.cli.render import is_terminal, note, print_record
from holdfast.cli.render.diagnosis import print_answer
from holdfast.model.errors import UsageError

from . import SUMMARIES

EPILOG = """\b
holdfast diagnose digits                       why it ended; for a live run, what it is doing
holdfast diagnose --deep digits                attach py-spy, strace or gdb too, where they are installed
holdfast diagnose --pid 4711                   look at any process and what it started
holdfast diagnose --bundle why.tar.gz digits   an archive to hand on: redacted, under 5 MiB

\b
Exit codes: 0 a verdict was reached (it says whether all is well); 64 wrong use;
66 no such run, attempt or process; 74 the archive cannot be written; 77 another account's."""


@click.command(short_help=SUMMARIES["diagnose"], epilog=EPILOG)
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("--pid", type=click.IntRange(min=1), metavar="N", help="Look at this process instead of a run.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Which attempt. [default: the newest]")
@click.option("--deep", is_flag=True, help="Attach tools to a live process, which stops it for moments.")
@click.option("--bundle", metavar="FILE", type=PATH, help="Write an archive of the evidence there.")
@click.option("--share", is_flag=True, help="With --bundle: without home directories, host and account names.")
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    *,
    run: str | None,
    pid: int | None,
    attempt: int | None,
    deep: bool,
    bundle: str | None,
    share: bool,
    runs: str | None,
    as_json: bool,
) -> int:
    """Say why RUN (its id, the beginning of it, or its name) ended, or why it hangs or is slow, and one thing to do.

    Evidence for and against is shown, and what could not be read: that is never taken for a no. A live run is looked
    at twice, 5 s apart; nothing is stopped or restarted, and without --deep nothing is attached to it.
    """
    if (run is None) == (pid is None):
        raise UsageError("name either a run or --pid", hint="holdfast diagnose RUN, or holdfast diagnose --pid N")
    if share and bundle is None:
        raise UsageError("--share is about the archive that --bundle writes", hint="add --bundle FILE")
    if pid is not None:
        if bundle is not None or attempt is not None:
            raise UsageError("--bundle and --attempt are for runs", hint="leave them out with --pid")
        answer = diagnose_pid(pid, deep=deep, tell=_note_progress)
    else:
        assert run is not None
        found = _find(run, runs)
        silence = find_silence(found.run_dir)
        answer = _diagnose(found, attempt, deep=deep, bundle=bundle, share=share) if silence is None else silence
    print_record(answer) if as_json else print_answer(answer)
    return 0


def _find(run: str, runs: str | None) -> FoundRun:
    found = find_run(run, root=runs)
    if found.notice:
        note(found.notice)
    return found


def _diagnose(found: FoundRun, attempt: int | None, *, deep: bool, bundle: str | None, share: bool) -> DiagnosisReport:
    require_readable(found)
    if attempt is None and (words := describe_retry(found.run_dir)):
        note(words)
    return diagnose_run(found.run_dir, attempt, deep=deep, tell=_note_progress, bundle=bundle, share=share)


def _note_progress(text: str) -> None:
    """What takes some seconds is said to people only."""
    if is_terminal(sys.stderr):
        note(text)
