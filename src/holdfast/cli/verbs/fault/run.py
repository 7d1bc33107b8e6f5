"""``holdfast fault run``: let faults happen, and compare the verdicts."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import click

from holdfast.agent.doctor.faults import choose_faults, list_names, run_faults
from holdfast.cli.completion import build_completer
from holdfast.cli.interrupt import interruptible
from holdfast.cli.path_type import PATH
from holdfast.cli.render import print_record
from holdfast.cli.render.faults import print_report, summarise_faults

from . import VERBS

if TYPE_CHECKING:
    from holdfast.faults.spec import FaultReport


def _list_faults(incomplete: str) -> list[tuple[str, str | None]]:
    return [(name, text) for name, text in list_names().items() if name.startswith(incomplete)]


@click.command("run", short_help=VERBS["run"])
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=build_completer(_list_faults))
@click.option("--all", "everything", is_flag=True, help="Every fault that this box can do, and the healthy controls.")
@click.option("--quick", is_flag=True, help="With --all: leave out those that take more than about ten seconds.")
@click.option("--keep", is_flag=True, help="Keep the sandboxes; their directories are printed.")
@click.option(
    "--nvml-library", metavar="PATH", type=PATH, help="A stand-in for libnvidia-ml.so.1, for faults of cards."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    *, names: tuple[str, ...], everything: bool, quick: bool, keep: bool, nvml_library: str | None, as_json: bool
) -> int:
    """Let the faults NAME happen, one after the other, and compare what is said with what is right.

    That the fault did happen is seen first (the signal, the errno, the kernel's counter), then the run is diagnosed as
    with `holdfast diagnose`.

    Exit code 0: all that this box can do were right. 1: a verdict was wrong, or a fault did not happen. 78: this box
    can do none of them; `holdfast fault list` says why.
    """
    chosen = choose_faults(names, everything=everything, quick=quick)
    hear = _hear_nothing if as_json else print_report
    with interruptible(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as interrupted:
        done = run_faults(chosen, keep=keep, nvml_library=nvml_library, interrupted=interrupted, hear=hear)
    if as_json:
        print_record(done)
    elif len(done.faults) > 1:
        print(summarise_faults(done.faults))
    return done.exit_code


def _hear_nothing(report: FaultReport) -> None:
    """For programs, who get all of them at the end."""
