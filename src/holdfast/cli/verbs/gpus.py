"""``holdfast gpus``: every card, who holds it, since when, what runs on it, and why it is not to be had."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli import idling, reserving, usage
from holdfast.cli.completion import complete_cards, complete_runs
from holdfast.cli.render import clean, note, print_json
from holdfast.model.gpu import InventorySource

from . import SUMMARIES

if TYPE_CHECKING:
    from holdfast.host.lease_area import Area

HEALTH_EPILOG = """\b
Examples:
  holdfast gpus health                  every card, some seconds
  holdfast gpus health 0 --for 30s      one card, longer
  holdfast gpus health --watch-free     what a new run would get
"""
QUARANTINE_EPILOG = """\b
Examples:
  holdfast gpus quarantine 3 --reason "Xid 95 twice today"
  holdfast gpus clear 3                 gives it back
"""
CLEAR_EPILOG = """\b
Examples:
  holdfast gpus clear 3 --reason "reset by the administrator"
"""


@click.group(short_help=SUMMARIES["gpus"], invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> int:
    """Show every card of this box: lessee, since when, run, memory, use, strangers on it, health, why not available.

    Nothing is leased and nobody is disturbed by looking. A driver that does not answer is said to, within a second.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    from holdfast.cli.box_showing import encode_box, print_box
    from holdfast.cli.cards import read_box

    box = read_box()
    if as_json:
        print_json(encode_box(box))
        return 0
    print_box(box)
    return 0


@command.command("release", short_help="End the lease of a run.")
@click.argument("run", shell_complete=complete_runs)
@click.option("--force", is_flag=True, help="Break it although it is not provably gone; only its owner or root.")
@click.option("--reason", default="", metavar="TEXT", help="Why; needed with --force, written to the audit log.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def release(*, run: str, force: bool, reason: str, as_json: bool) -> int:
    """End the lease of RUN (its id, its name, or a card's index) when its holder is gone.

    No process is signalled. A lease that still holds is broken only by its owner or root, with --force and a written
    --reason; every break leaves a line in the audit log.
    """
    from holdfast.cli.cards import open_existing_area
    from holdfast.host.lease_breaking import break_lease
    from holdfast.model.errors import NoSuchRun

    area = open_existing_area()
    if area is None:
        raise NoSuchRun(f"no lease of {run}: nobody has leased on this box", hint="holdfast gpus shows the cards")
    broken = break_lease(area, _find_lessee(area, run), force=force, reason=reason)
    if as_json:
        print_json({"released": broken})
        return 0
    print(clean(f"the lease of {broken.run_id} was ended; removed {len(broken.removed)} files"))
    if broken.still_running:
        pids = ", ".join(map(str, broken.still_running))
        note(f"processes of that run are still there and may use the card: {pids}")
    for path in broken.kept:
        note(f"kept: {path}")
    return 0


def _find_lessee(area: Area, text: str) -> str:
    """A run id as it is; for a name the lessee of that name; for a card's index, the run that leases the card."""
    from holdfast.cli.cards import read_box
    from holdfast.host import lease_records
    from holdfast.model.errors import NoSuchRun, UsageError
    from holdfast.model.ids import name_of

    if not (text.isascii() and text.isdigit()):
        leased = {found.record.run_id for found in lease_records.read_records(area)[0]}
        named = sorted(run_id for run_id in leased if name_of(run_id) == text)
        if len(named) > 1:
            raise UsageError(f"{len(named)} lessees are named {text!r}: {', '.join(named)}", hint="say its id")
        return named[0] if named else text
    held = {place.lease.run_id for place in read_box().places if place.lease and place.index == int(text)}
    if len(held) != 1:
        what = "is not leased" if not held else f"is leased by several runs: {', '.join(sorted(held))}"
        raise NoSuchRun(f"card {text} {what}", hint="holdfast gpus shows the cards and their runs")
    return held.pop()


@command.command("reset-request", short_help="Write to the administrator for a reset.")
@click.argument("index", type=click.IntRange(min=0))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def reset_request(*, index: int, as_json: bool) -> int:
    """Write a message that asks the administrator to reset card INDEX. Nothing is executed.

    It holds the card, the processes on it, their users, the exact command, and says that the card is idle only when
    that was read to be true.
    """
    import os

    from holdfast.cli.cards import build_reset_request, is_idle, read_box
    from holdfast.host.clock import utc_now
    from holdfast.model.errors import UsageError

    box = read_box()
    place = next((place for place in box.places if place.index == index and place.part is None), None)
    if place is None:
        known = ", ".join(str(place.index) for place in box.places if place.part is None) or "none"
        reason = f" ({box.inventory.reason})" if box.inventory.reason else ""
        raise UsageError(f"there is no card {index} here{reason}; the cards are: {known}", hint="see holdfast gpus")
    text = build_reset_request(box, place, host=os.uname().nodename, now=utc_now())
    if as_json:
        print_json({"index": index, "uuid": place.uuid, "idle": is_idle(place), "text": text})
    else:
        print(clean(text, keep_newlines=True))
    return 0


@command.command("health", short_help="Judge how well each card is.", epilog=HEALTH_EPILOG)
@click.argument("cards", nargs=-1, metavar="[CARD]...", shell_complete=complete_cards)
@click.option("--watch-free", is_flag=True, help="Look only at the cards that a new run would get now.")
@click.option("--for", "window", default="4s", metavar="DURATION", show_default=True, help="How long to watch.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def health(*, cards: tuple[str, ...], watch_free: bool, window: str, as_json: bool) -> int:
    """Judge how well each CARD is (all without one): pass, warn, fail or unknown, each with what was seen.

    Watches the cards for some seconds, because what limits their clocks comes and goes, and reads the kernel's log
    for error codes (Xid) of this boot. What could not be read is shown as unknown, which is not a pass. Nothing is
    changed, nobody is disturbed. Exit code 0 when nothing failed, 78 when a card did.
    """
    from holdfast.cli.card_health import parse_window, shorten, watch_box
    from holdfast.cli.findings import print_levels
    from holdfast.model.errors import PreflightFailed
    from holdfast.model.finding import Level, worst

    seconds = parse_window(window)
    watched, findings = watch_box(cards, seconds, free_only=watch_free)
    code = PreflightFailed.exit_code if worst(findings) is Level.FAIL else 0
    simulated = watched.last.source is InventorySource.SIMULATED
    if as_json:
        print_json(
            {
                "simulated": simulated,
                "complete": watched.last.complete,
                "reason": watched.last.reason,
                "seconds": round(watched.elapsed_s, 3),
                "readings": max((len(samples) for samples in watched.samples.values()), default=0),
                "level": worst(findings),
                "findings": findings,
                "exit_code": code,
            }
        )
        return code
    if simulated:
        print("SIMULATED cards (HOLDFAST_SIMULATED_GPUS): no hardware behind them")
    if findings and watched.samples and not watched.last.complete:
        note(f"this reading is incomplete: {watched.last.reason}")
    if not findings:
        print(f"no cards: {watched.last.reason or 'none to look at'}")
        return code
    print_levels(shorten(findings))
    return code


@command.command("quarantine", short_help="Set a card aside.", epilog=QUARANTINE_EPILOG)
@click.argument("card", shell_complete=complete_cards)
@click.option("--reason", required=True, metavar="TEXT", help="Why; everybody on this box can read it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def quarantine(*, card: str, reason: str, as_json: bool) -> int:
    """Set CARD (index or UUID) aside on this host: no new run of yours gets it until it is cleared.

    Said by root it holds for every account. Runs that are on the card go on.
    """
    from holdfast.cli.card_health import find_card
    from holdfast.cli.cards import read_box
    from holdfast.host.quarantine import quarantine as set_aside

    box = read_box()
    record = set_aside(find_card(box, card), reason)
    if record.uuid not in {place.uuid for place in box.places}:
        note(f"no card that answers now has the UUID {record.uuid}: is it written right?")
    if as_json:
        print_json({"quarantined": record})
    else:
        print(f"card {card} ({record.uuid}) is set aside: {record.reason}")
    return 0


@command.command("clear", short_help="Give a card back that was set aside.", epilog=CLEAR_EPILOG)
@click.argument("card", shell_complete=complete_cards)
@click.option("--reason", default="", metavar="TEXT", help="Why it is well again, for the record.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def clear(*, card: str, reason: str, as_json: bool) -> int:
    """Give CARD (index or UUID) back after a reset or exchange; error codes from before then do not count.

    Clears your own word on the card; root clears everybody's.
    """
    from holdfast.cli.card_health import find_card
    from holdfast.cli.cards import read_box
    from holdfast.host.quarantine import clear as give_back
    from holdfast.host.quarantine import list_quarantined

    uuid = find_card(read_box(), card)
    removed = give_back(uuid, reason=reason)
    left = [record for record in list_quarantined() if record.uuid == uuid]
    if as_json:
        print_json({"cleared": removed, "left": left})
        return 0
    print(f"card {card} ({uuid}) is cleared; it was {'set aside' if removed else 'not set aside'}")
    for record in left:
        note(f"still set aside by {record.user}: {record.reason}")
    return 0


for _more in (usage.command, idling.command, reserving.reserve, reserving.list_all, reserving.unreserve):
    command.add_command(_more)
