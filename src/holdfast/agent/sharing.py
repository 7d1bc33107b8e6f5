"""What one run owes to the other accounts of the box, and the note of what it used. Loaded where cards are leased."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..host import usage
from ..host.sharing import House
from ..model.finding import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..core.rules import Rules
    from ..host.lease_area import Area
    from ..host.leases import Held
    from ..model.job import JobSpec
    from ..model.lease import LeasedDevice
    from .context import Context


def build_house(spec: JobSpec, rules: Rules, *, simulated: bool) -> House:
    """The rules between accounts as they are for this job."""
    return House(rules, hold_s=find_longest_hold(spec, rules), simulated=simulated)


def find_longest_hold(spec: JobSpec, rules: Rules) -> float | None:
    """For how many seconds a job would hold its cards at most, grace included; None where nothing limits it."""
    limits = (spec.timeouts.run_s, spec.timeouts.total_s, spec.gpu.max_hold_s, rules.max_hold_s)
    longest_s = min((limit for limit in limits if limit is not None), default=None)
    if longest_s is None:
        return None
    ceiling_s = spec.grace_max_s if rules.grace_max_s is None else min(spec.grace_max_s, rules.grace_max_s)
    return longest_s + (ceiling_s if spec.grace_s is None else min(spec.grace_s, ceiling_s))


def judge_house(house: House, area: Area, count: int, level: Level) -> Iterator[Finding]:
    """What the rules say to `count` more cards for this account: nothing, that others go first, or no (`level`)."""
    bars, borrows = house.describe_standing(area, count)
    for text in bars:
        yield Finding("rules.share", level, "this account", text, "wait for it: gpu: {wait: 2h}")
    if borrows and not bars:
        seen = f"{borrows}: the job gets cards when nobody within a share waits for them"
        yield Finding("rules.share", Level.WARN, f"uid {os.geteuid()}", seen, "ask for fewer cards, or wait")


def describe_reserved(house: House, area: Area, devices: list[LeasedDevice]) -> dict[str, str]:
    """The devices that are kept for others while the job would hold them, with who, when and why."""
    return {uuid: busy.holder for uuid, busy in house.find_reserved(area, devices).items()}


def note_use(context: Context, held: Held) -> None:
    """Write down what this lease used, before it is given back: a card that nobody accounts for helps nobody."""
    if not usage.note(held.area, held.record):
        context.recorder.log("the use of the cards could not be written to the ledger in the lease area")
