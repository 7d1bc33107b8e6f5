"""``holdfast fault``: let something go wrong on purpose, in a sandbox, and see whether the verdict is right."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import click

from holdfast.cli.render import print_json
from holdfast.model.errors import UsageError

from . import SUMMARIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from click.shell_completion import CompletionItem

    from holdfast.faults.spec import Fault, Report

EPILOG = """\b
holdfast fault list                        what there is, and what this box can do
holdfast fault run disk-full               a real full disk, judged
holdfast fault run --all                   all of them, about eight minutes
holdfast fault run --all --quick           those that need seconds, about one minute
holdfast fault run --keep hang-up          keep the sandbox, to look at the run in it"""


@click.group(short_help=SUMMARIES["fault"], epilog=EPILOG)
def command() -> int:
    """Let a training fail for real, and see whether holdfast says why.

    Each fault is a run of its own in a sandbox of its own: a directory, a mount namespace where something is mounted, a
    control group. Nothing outside of it is touched, and nothing is left of it, also when this command is killed.
    """
    return 0


@command.command("list", short_help="List the faults, and whether this box can do them.")
@click.option("--nvml-library", metavar="PATH", type=click.Path(), help="A stand-in for libnvidia-ml.so.1.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def list_faults(*, nvml_library: str | None, as_json: bool) -> int:
    """List the faults, what must be said about each, and whether this box can do it.

    What a fault needs is tried, each in a process that is thrown away.
    """
    from holdfast.cli.faulting import encode_fault, print_list
    from holdfast.faults.needs import Needs
    from holdfast.faults.table import FAULTS

    needs = Needs(nvml_library)
    if as_json:
        print_json({"faults": [encode_fault(fault, needs) for fault in FAULTS]})
    else:
        print_list(FAULTS, needs)
    return 0


def _complete_faults(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    from click.shell_completion import CompletionItem

    from holdfast.faults.table import FAULTS

    return [CompletionItem(f.name, help=f.summary) for f in FAULTS if f.name.startswith(incomplete)]


@command.command("run", short_help="Let faults happen, and compare the verdicts.")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=_complete_faults)
@click.option("--all", "everything", is_flag=True, help="Every fault that this box can do, and the healthy controls.")
@click.option("--quick", is_flag=True, help="With --all: leave out those that take more than about ten seconds.")
@click.option("--keep", is_flag=True, help="Keep the sandboxes; their directories are printed.")
@click.option(
    "--nvml-library", metavar="PATH", type=click.Path(), help="A stand-in for libnvidia-ml.so.1, for faults of cards."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def run_faults(
    *, names: tuple[str, ...], everything: bool, quick: bool, keep: bool, nvml_library: str | None, as_json: bool
) -> int:
    """Let the faults NAME happen, one after the other, and compare what is said with what is right.

    That the fault did happen is seen first (the signal, the errno, the kernel's counter), then the run is diagnosed as
    with `holdfast diagnose`.

    Exit code 0: all that this box can do were right. 1: a verdict was wrong, or a fault did not happen. 78: this box
    can do none of them; `holdfast fault list` says why.
    """
    from holdfast.cli.faulting import decide_exit, judge_records, print_report, summarise
    from holdfast.faults.engine import run_fault
    from holdfast.faults.needs import Needs

    chosen, needs = _choose(names, everything=everything, quick=quick), Needs(nvml_library)
    reports: list[Report] = []
    with _interruptible() as interrupted:
        for fault in chosen:
            reports.append(
                run_fault(
                    fault,
                    needs,
                    keep=keep,
                    nvml_library=nvml_library,
                    interrupted=interrupted,
                    judge_records=judge_records,
                )
            )
            if not as_json:
                print_report(reports[-1])
    code = decide_exit(reports)
    if as_json:
        print_json({"faults": reports, "exit_code": code})
    elif len(reports) > 1:
        print(summarise(reports))
    return code


def _choose(names: tuple[str, ...], *, everything: bool, quick: bool) -> tuple[Fault, ...]:
    from holdfast.faults.table import FAULTS, find

    if everything == bool(names):
        both = "faults are named, and --all is given" if names else "no fault is named"
        raise UsageError(both, hint="name some of those that `holdfast fault list` shows, or give --all")
    if not everything:
        return tuple(find(name) for name in names)
    return tuple(fault for fault in FAULTS if not (quick and fault.slow))


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """INT, TERM and HUP set a flag, so that what was set up is undone before we leave."""
    seen: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: seen.append(number))
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
