"""``holdfast pull``: runs, whole and proven, into directories of this machine."""

from __future__ import annotations

import os

import click

from holdfast.cli.completion import complete_runs
from holdfast.cli.render import note, print_record
from holdfast.cli.render.copying import CopyProgress
from holdfast.cli.render.pulled import print_plan, print_pulled, print_verified
from holdfast.core.pull.stream import Wish
from holdfast.desk.pull import Pulled, PulledRuns, PullPlan, PullPlans, PullSource, find_source, plan_pull, pull
from holdfast.desk.route.router import split_run
from holdfast.model.errors import EXIT_STOPPED, ResultMissing, UsageError
from holdfast.model.ids import is_run_id
from holdfast.transfer.pull.copy import GOES_ON
from holdfast.transfer.pull.verify import VerifiedCopies, VerifiedCopy, verify_copy

from . import SUMMARIES

EPILOG = """\b
holdfast pull gpu1:digits                          into ./RUN-ID
holdfast pull gpu1:digits results                  into ./results
holdfast pull gpu1:a gpu1:b cluster:c ./all        into ./all/RUN-ID each
holdfast pull gpu1:digits --without '*.tmp'        but for some files
holdfast pull gpu1:digits --only checkpoints --dry-run
holdfast pull gpu1:digits results --accept val.jsonl   its NaN is known, and wanted
holdfast pull ./results --verify                   is the copy still what was pulled?"""


@click.command(short_help=SUMMARIES["pull"], epilog=EPILOG)
@click.argument("runs", metavar="SOURCE... [DIR]", nargs=-1, required=True, shell_complete=complete_runs)
@click.option("--only", multiple=True, metavar="PATTERN", help="Pull files of this pattern alone, and records.")
@click.option("--without", multiple=True, metavar="PATTERN", help="Leave out files of this pattern.")
@click.option("--accept", multiple=True, metavar="PATTERN", help="Take damaged files of this pattern as they are.")
@click.option("--verify", is_flag=True, help="Pull nothing; hash the copies that are named against their rosters.")
@click.option("--dry-run", is_flag=True, help="Show what would be pulled, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    *,
    runs: tuple[str, ...],
    only: tuple[str, ...],
    without: tuple[str, ...],
    accept: tuple[str, ...],
    verify: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Bring each SOURCE, which is [PLACE:]RUN, home into DIR (else ./RUN-ID), and prove that it is all there.

    Every file is hashed on its way and stands under its name when it is whole; the roster that the place makes
    afterwards says what must be here. Then each is tried by loading it, in ways that run nothing of it: checkpoints,
    torch archives and pickles, numpy, safetensors, JSON, CSV, images. A receipt of all that is left in DIR and here.
    What was cut off is gone on with by the same command; of what is here already only what is missing or different
    comes. Nothing in DIR is removed, and a result that is here as the end of the newest attempt that succeeded left it
    is not replaced by one that was changed since, while nothing of the run lived.

    The last word is DIR unless it names a run: PLACE:RUN, or a whole run id. With several runs each has a directory of
    its own in DIR. A pattern with a slash is matched against the whole path, one without against each name in it.

    Exit code 0 when all is here and sound, 73 when a file arrived whole and is damaged (cut off, empty, a NaN in it):
    it is named, and so are files of formats that nobody here can load. What is right as it is, is taken with --accept:
    the receipt says so, and opens the gate of teardown. Of the newest checkpoint that is not enough: teardown asks you
    then whether it loads.

    With --verify each word is the directory of a copy. All of it is read and held against the roster that stands in it,
    also when its source is gone; 73 when a file is not what was pulled, or is not there any more, and 74 when that may
    be by a later pull that has not come to its end.
    """
    if verify:
        if only or without or accept or dry_run:
            raise UsageError("--verify pulls nothing", hint="leave out the other options")
        return _verify(runs, as_json=as_json)
    names, into = _split(runs)
    done: list[Pulled] = []
    plans: list[PullPlan] = []
    for name in names:
        source = find_source(name)
        base = into if into is not None and len(names) == 1 else os.path.join(into or ".", source.run_id)
        wish = Wish(source.word, only, without)
        if dry_run:
            plans.append(plan_pull(source, base, wish, accept=accept))
            if not as_json:
                print_plan(plans[-1])
            continue
        pulled = _pull(source, base, wish, accept)
        if pulled is None:
            return EXIT_STOPPED
        done.append(pulled)
        if not as_json:
            print_pulled(pulled)
    if as_json and dry_run:
        print_record(plans[0] if len(plans) == 1 else PullPlans(tuple(plans)))
    elif as_json:
        print_record(done[0] if len(done) == 1 else PulledRuns(tuple(done)))
    return ResultMissing.exit_code if any(one.receipt.damaged for one in done) else 0


def _verify(directories: tuple[str, ...], *, as_json: bool) -> int:
    """Hold copies against their rosters."""
    done: list[VerifiedCopy] = []
    for directory in directories:
        meter = CopyProgress("read: ")
        try:
            done.append(verify_copy(directory, meter.tell))
        finally:
            meter.end()
        if not as_json:
            print_verified(done[-1])
    if as_json:
        print_record(done[0] if len(done) == 1 else VerifiedCopies(tuple(done)))
    return ResultMissing.exit_code if any(one.damaged for one in done) else 0


def _split(words: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
    """Runs, and the directory behind them."""
    last = words[-1]
    if len(words) == 1 or split_run(last)[0] is not None or is_run_id(last):
        return words, None
    return words[:-1], last


def _pull(source: PullSource, directory: str, wish: Wish, accept: tuple[str, ...]) -> Pulled | None:
    """Pull one run, with its progress shown; None where somebody stopped it."""
    meters = [CopyProgress(), CopyProgress("looked at what is here: "), CopyProgress("tried by loading: ")]

    def say(text: str) -> None:
        for meter in meters:
            meter.end()
        note(text)

    try:
        return pull(
            source,
            directory,
            wish,
            accept=accept,
            tell=meters[0].tell,
            count=meters[1].count,
            tries=meters[2].tell,
            say=say,
        )
    except KeyboardInterrupt:
        say(f"stopped; {GOES_ON}")
        return None
    finally:
        for meter in meters:
            meter.end()
