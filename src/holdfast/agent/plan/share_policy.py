"""Applies the box's sharing rules to one run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.core.rules.rules import Rules
from holdfast.host.lease.area import LeaseArea
from holdfast.host.lease.share_policy import SharePolicy
from holdfast.model.finding import Finding, Level
from holdfast.model.job import JobSpec
from holdfast.model.lease import LeasedDevice, LeaseRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_FOR_CARDS = "let it stand in line: run --wait 2h, restart --gpu-wait 2h, in a job file gpu: {wait: 2h}"


def build_policy(spec: JobSpec, rules: Rules, *, simulated: bool) -> SharePolicy:
    """The rules between accounts as they are for this job."""
    return SharePolicy(rules, hold_s=find_longest_hold(spec, rules), simulated=simulated)


def find_longest_hold(spec: JobSpec, rules: Rules) -> float | None:
    """For how many seconds a job would hold its cards at most, grace included; None where nothing limits it."""
    limits = (spec.timeouts.run_s, spec.timeouts.total_s, spec.gpu.max_hold_s, rules.max_hold_s)
    longest_s = min((limit for limit in limits if limit is not None), default=None)
    if longest_s is None:
        return None
    ceiling_s = spec.grace_max_s if rules.grace_max_s is None else min(spec.grace_max_s, rules.grace_max_s)
    return longest_s + (ceiling_s if spec.grace_s is None else min(spec.grace_s, ceiling_s))


def judge_policy(
    policy: SharePolicy, area: LeaseArea, count: int, level: Level, *, own: LeaseRecord | None = None
) -> Iterator[Finding]:
    """What the rules say to `count` more cards for this account: nothing, that others go first, or no (`level`).

    A lease of `own`'s run is about to end and does not count.
    """
    bars, borrows = policy.describe_standing(area, count, own=own)
    for text in bars:
        yield Finding("rules.share", level, "this account", text, WAIT_FOR_CARDS)
    if borrows and not bars:
        seen = f"{borrows}: the job gets cards when nobody within a share waits for them"
        yield Finding("rules.share", Level.WARN, f"uid {os.geteuid()}", seen, "ask for fewer cards, or wait")


def describe_reserved(policy: SharePolicy, area: LeaseArea, devices: list[LeasedDevice]) -> dict[str, str]:
    """The devices that are kept for others while the job would hold them, with who, when and why."""
    return {uuid: busy.holder for uuid, busy in policy.find_reserved(area, devices).items()}
