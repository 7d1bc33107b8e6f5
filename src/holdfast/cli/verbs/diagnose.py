"""``holdfast diagnose``: why did it end, or why does it not go on."""

from __future__ import annotations

import click

from holdfast.cli.completion import complete_runs
from holdfast.cli.render import note, print_json
from holdfast.model.errors import UsageError

from . import SUMMARIES

EPILOG = """\b
holdfast diagnose digits                     why it ended; for a live run, what it is doing
holdfast diagnose --deep digits              attach py-spy, strace or gdb too, where they are installed
holdfast diagnose --pid 4711                 look at any process and what it started
holdfast diagnose --bundle why.tar.gz digits an archive to hand on: redacted, under 5 MiB

\b
Exit codes: 0 a verdict was reached (it says whether all is well); 64 wrong use;
66 no such run, attempt or process; 74 the archive cannot be written; 77 another account's."""


@click.command(short_help=SUMMARIES["diagnose"], epilog=EPILOG)
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("--pid", type=click.IntRange(min=1), metavar="N", help="Look at this process instead of a run.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Which attempt. [default: the newest]")
@click.option("--deep", is_flag=True, help="Attach tools to a live process, which stops it for moments.")
@click.option("--bundle", metavar="FILE", type=click.Path(), help="Write an archive of the evidence there.")
@click.option("--runs", metavar="DIR", type=click.Path(), help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    *,
    run: str | None,
    pid: int | None,
    attempt: int | None,
    deep: bool,
    bundle: str | None,
    runs: str | None,
    as_json: bool,
) -> int:
    """Say why RUN (its id, the beginning of it, or its name) ended, or why it hangs or is slow, and one thing to do.

    Evidence for and against is shown, and what could not be read: that is never taken for a no. A live run is looked
    at twice, 5 s apart; nothing is stopped or restarted, and without --deep nothing is attached to it.
    """
    from holdfast.cli import diagnosing

    if (run is None) == (pid is None):
        raise UsageError("name either a run or --pid", hint="holdfast diagnose RUN, or holdfast diagnose --pid N")
    if pid is not None:
        if bundle is not None or attempt is not None:
            raise UsageError("--bundle and --attempt are for runs", hint="leave them out with --pid")
        answer = diagnosing.diagnose_pid(pid, deep=deep)
    else:
        from holdfast.cli.runs import find, require_readable

        assert run is not None
        found = find(run, root=runs)
        if found.notice:
            note(found.notice)
        silence = diagnosing.find_silence(found)
        if silence is None:
            require_readable(found)
            if attempt is None:
                diagnosing.tell_of_retry(found.run_dir)
        answer = silence or diagnosing.diagnose_run(found, attempt, deep=deep)
        if bundle is not None and silence is None:
            answer = diagnosing.add_bundle(answer, found.run_dir, bundle)
    if as_json:
        print_json(answer.encode())
    else:
        diagnosing.print_answer(answer)
    return 0
