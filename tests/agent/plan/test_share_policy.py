"""What one job owes to other accounts: how long it would hold its cards, and what preflight says of its share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.agent.plan.share_policy import build_policy, find_longest_hold, judge_policy
from holdfast.core.rules.rules import Rules
from holdfast.host.lease import leases
from holdfast.host.lease.area import LeaseArea, open_area
from holdfast.model.finding import Level
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import GpuOptions, JobSpec, Timeouts
from tests.host.lease_support import CARDS, record, take

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.contract

SPEC = JobSpec("t", ("true",), "/", gpus=GpuRequest(count=1))


@pytest.fixture
def held(tmp_path: Path, isolated_environment: dict[str, str]) -> Iterator[tuple[LeaseArea, leases.HeldLease]]:
    """A card that this account holds."""
    area = open_area(hand_written=str(tmp_path / "gpu_locks"))
    lease = take(area, record(1, CARDS[0]))
    yield area, lease
    lease.release()


def test_the_first_limit_counts_with_the_grace_that_comes_after_it() -> None:
    assert find_longest_hold(SPEC, Rules()) is None
    limited = JobSpec("t", ("true",), "/", timeouts=Timeouts(run_s=3600.0, total_s=7200.0), grace_s=30.0)
    assert find_longest_hold(limited, Rules()) == 3630.0
    assert find_longest_hold(limited, Rules(max_hold_s=60.0, grace_max_s=10.0)) == 70.0
    holding = JobSpec("t", ("true",), "/", gpu=GpuOptions(max_hold_s=100.0), grace_max_s=20.0)
    assert find_longest_hold(holding, Rules()) == 120.0


@pytest.mark.requirement("ETIQ-09", "ETIQ-07")
@pytest.mark.parametrize(
    ("rules", "level", "words"),
    [
        (Rules(cards_per_user=1), Level.WARN, "with the 1 held that is 2 cards; the share is 1"),
        (Rules(max_cards_per_user=1), Level.FAIL, "share.max_cards_per_user"),
        (Rules(cards_per_user=1, max_cards_per_user=1), Level.FAIL, "share.max_cards_per_user"),
        (Rules(hours_per_week=0.0), Level.WARN, "GPU-hours were used this week"),
    ],
)
def test_a_request_beyond_a_share_is_said_before_it_waits(
    held: tuple[LeaseArea, leases.HeldLease], rules: Rules, level: Level, words: str
) -> None:
    policy = build_policy(SPEC, rules, simulated=False)
    (finding,) = judge_policy(policy, held[0], 1, Level.FAIL)
    assert (finding.id, finding.level) == ("rules.share", level)
    assert words in finding.evidence


def test_a_request_within_its_share_is_not_worth_a_word(held: tuple[LeaseArea, leases.HeldLease]) -> None:
    for rules in (Rules(), Rules(cards_per_user=2, max_cards_per_user=2, hours_per_week=100.0)):
        assert list(judge_policy(build_policy(SPEC, rules, simulated=False), held[0], 1, Level.FAIL)) == []
