"""The bill of a place from what the desk knows: hours, sum, idle share, clocks, cap, and the line that reminds."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.cli.render.cost import print_costs
from holdfast.desk.cost.cap import refuse_over_cap
from holdfast.desk.cost.costs import PlaceCost, find_cost
from holdfast.desk.cost.estimate import estimate
from holdfast.desk.cost.every import Costs
from holdfast.desk.cost.reminder import find_urgent, remind
from holdfast.desk.runs.answer import read_answer
from holdfast.desk.runs.registry import record_poll
from holdfast.desk.teardown.approvals import use_approval
from holdfast.desk.teardown.last_check import keep_check
from holdfast.host.clock import format_utc, parse_utc
from holdfast.model.errors import PreflightFailed
from holdfast.model.place import Place, Rent
from holdfast.model.profile import Clock, Profile
from holdfast.model.teardown import Approval, GoneCheck
from tests.desk.runs.sightings import answer, over, row

pytestmark = pytest.mark.files

SINCE = "2026-11-20T10:00:00.000Z"
NOW_S = parse_utc(SINCE) + 2 * 3600
MONEY = Profile("rental", "A rental", metered="money", currency="USD", egress_per_gb=0.09)


def rented(**fields: Any) -> Place:
    return Place("gpu1", host="gpu1", rent=Rent(**{"since": SINCE, "rate": 1.99, "currency": "USD", **fields}))


def hear(*rows: dict[str, Any], at_s: float = NOW_S) -> None:
    record_poll(read_answer("gpu1", answer(*rows), at=format_utc(at_s)))


def cost(place: Place | None = None, kind: Profile | None = MONEY, now_s: float = NOW_S) -> PlaceCost:
    return find_cost(place or rented(), kind, now_s)


@pytest.mark.requirement("COST-01", "BSSH-07")
def test_two_hours_at_1_99_and_how_much_of_them_was_idle(isolated_environment: dict[str, str]) -> None:
    hear(over(started_at="2026-11-20T10:30:00.000Z", ended_at="2026-11-20T11:00:00.000Z", cards="0"))
    found = cost()
    assert (found.hours, round(found.total or 0, 2), found.unit) == (2.0, 3.98, "USD")
    assert found.idle_share == pytest.approx(0.75)
    assert remind(found).startswith("gpu1: 2.0 h at 1.99 USD = 3.98 USD; its last run finished 1h00m")


@pytest.mark.gotcha("GEN1")
@pytest.mark.requirement("COST-02")
def test_a_place_that_has_finished_is_reminded_of_and_one_at_work_is_only_counted(
    isolated_environment: dict[str, str],
) -> None:
    hear(row(started_at="2026-11-20T10:30:00.000Z"))
    assert "finished" not in remind(cost())
    assert cost().idle_share == pytest.approx(0.25)
    hear(over(started_at="2026-11-20T10:30:00.000Z", ended_at="2026-11-20T11:59:00.000Z"), at_s=NOW_S + 60)
    assert "finished" not in remind(cost(now_s=NOW_S + 60))
    line = remind(cost(now_s=NOW_S + 3600))
    assert "it still bills: holdfast teardown gpu1" in line
    # A person is told of it once a day.
    told = [find_urgent(cost(now_s=NOW_S + after_s)) for after_s in (60, 3600, 7200, 90_000)]
    assert told == ["", "finished on 2026-11-20", "finished on 2026-11-20", "finished on 2026-11-21"]


@pytest.mark.gotcha("GEN1")
@pytest.mark.requirement("COST-02")
def test_a_place_in_which_nothing_was_ever_begun_is_reminded_of(isolated_environment: dict[str, str]) -> None:
    early = cost(now_s=NOW_S - 5400)
    assert (remind(early), find_urgent(early)) == ("gpu1: 0.5 h at 1.99 USD = 0.99 USD", "")
    words = "as far as this desk has seen nothing has run there in 2h00m, and it bills: holdfast teardown gpu1"
    assert words in remind(cost())
    assert find_urgent(cost()) == "unused on 2026-11-20"
    hear(row(started_at="2026-11-20T10:30:00.000Z"))
    assert "nothing has run there" not in remind(cost())


def test_what_nobody_has_seen_is_no_idle_time(isolated_environment: dict[str, str]) -> None:
    found = cost()
    assert (found.idle_share, found.seen_until, found.used_h) == (None, None, None)
    hear(over(started_at=SINCE, ended_at="2026-11-20T10:30:00.000Z"), at_s=NOW_S - 3600)
    assert cost().idle_share == pytest.approx(0.5)  # of the hour until it was heard of last


def test_an_owned_machine_and_an_unknown_price(isolated_environment: dict[str, str]) -> None:
    assert remind(cost(Place("gpu1"), None)) == ""
    assert remind(cost(rented(), Profile("local", "own"))) == ""
    found = cost(rented(rate=None))
    assert found.total is None
    assert "no rate in [gpu1.rent]" in found.unknown
    assert "what an hour costs is not known" in remind(found)


def check(state: str, verb: str, at_s: float) -> None:
    keep_check(Place("gpu1"), GoneCheck(format_utc(at_s), verb, state, "its page says so"))


@pytest.mark.requirement("VRFY-09")
def test_a_machine_bills_until_it_was_seen_to_be_gone(isolated_environment: dict[str, str]) -> None:
    check("unknown", "destroy", NOW_S - 3600)
    assert cost().bills
    check("there", "destroy", NOW_S - 3600)
    assert cost().bills
    check("gone", "destroy", NOW_S - 3600)
    found = cost()
    assert (found.bills, found.hours, remind(found)) == (False, 1.0, "")
    assert cost(rented(since=format_utc(NOW_S - 1800))).bills  # another rent, later
    hear(at_s=NOW_S - 60)
    assert cost().bills  # it has answered since


@pytest.mark.requirement("COST-08")
def test_a_machine_that_was_stopped_has_its_clock_and_bills_as_the_verb_says(
    isolated_environment: dict[str, str],
) -> None:
    kind = Profile(
        "rental", "A rental", metered="money", clocks=(Clock("purge", "stop", 15 * 86400.0, "it is released"),)
    )
    now_s = NOW_S + 14 * 86400
    check("stopped", "stop", NOW_S)
    found = cost(kind=kind, now_s=now_s)
    assert found.bills  # nothing says that this verb stops the meter
    assert [each.name for each in found.clocks_to_begin] == ["purge"]
    use_approval(
        Approval("h", "gpu1", "gpu1", "stop", format_utc(NOW_S), "anna", stops_meter=True, irreversible=False), 0
    )
    found = cost(kind=kind, now_s=now_s)
    assert (found.bills, found.hours) == (False, 2.0)
    assert [(each.name, each.left_s) for each in found.clocks] == [("purge", 86400.0)]


@pytest.mark.requirement("COST-07")
def test_a_quota_is_hours_of_cards_and_no_money(isolated_environment: dict[str, str]) -> None:
    kind = Profile("kaggle", "Kaggle", metered="quota")
    hear(
        over(1, started_at="2026-11-20T10:00:00.000Z", ended_at="2026-11-20T11:00:00.000Z", cards="0,1"),
        over(2, started_at="2026-11-20T11:00:00.000Z", ended_at="2026-11-20T11:30:00.000Z", cards="0"),
    )
    found = cost(Place("gpu1", rent=Rent(cap=30.0)), kind)
    assert (found.total, found.unit, found.rate, found.over_cap) == (2.5, "h", None, False)
    assert remind(found) == "gpu1: 2.5 h of cards used of 30 h"
    assert cost(Place("gpu1", rent=Rent(cap=2.0)), kind).over_cap
    assert remind(cost(Place("gpu1"), kind)) == ""  # a quota that nobody has stated runs out for nobody


@pytest.mark.requirement("COST-09")
def test_above_the_cap_nothing_new_is_begun(isolated_environment: dict[str, str]) -> None:
    refuse_over_cap(rented(cap=None))
    refuse_over_cap(rented(since="2099-01-01T00:00:00.000Z", cap=1.0))
    with pytest.raises(PreflightFailed, match="has reached its cap of 3 USD") as caught:
        refuse_over_cap(rented(cap=3.0))
    assert "raise `cap` in [gpu1.rent]" in caught.value.hint
    with pytest.raises(PreflightFailed, match="cannot be told: no rate in"):
        refuse_over_cap(rented(cap=3.0, rate=None))


@pytest.mark.requirement("COST-04", "COST-05", "COST-06")
def test_estimates_name_how_they_come_about(isolated_environment: dict[str, str]) -> None:
    costs = Costs((cost(),))
    found = estimate(costs, gb=140, times=30, price=None, interval_s=1800, machines=2).estimates
    assert [round(each.sum or 0, 2) for each in found] == [378, 1.99]
    assert "once is enough" in found[0].words
    unknown = estimate(
        Costs((cost(kind=Profile("x", "x", metered="money")),)), gb=1, times=1, price=None, interval_s=None, machines=1
    )
    assert unknown.estimates[0].sum is None


def test_what_is_missing_for_a_bill_is_said_with_what_to_write(
    isolated_environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    print_costs(Costs((cost(Place("gpu1", host="gpu1"), None),), (), ()), named="gpu1")
    assert "gpu1 has no meter: " in (said := capsys.readouterr().out)
    assert '[gpu1.rent]\nsince = "' in said
    print_costs(Costs((cost(Place("gpu1", host="gpu1")),), (), ()), named="gpu1")
    said, beside = capsys.readouterr()
    assert "since when it bills is not written down" in said
    assert "rate = 1.99" in beside
