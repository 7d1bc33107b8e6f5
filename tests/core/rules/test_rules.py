"""Rules of a box: read strictly, and no job exceeds them."""

from __future__ import annotations

import pytest

from holdfast.core.rules.rules import (
    XID_SEVERITIES,
    Rules,
    RulesError,
    apply_rules,
    card_rules,
    combine_rules,
    judge_hours,
    parse_rules,
)
from holdfast.diagnosis.kernel.xids import Severity
from holdfast.model.finding import Level
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import GpuOptions, JobSpec, Priority, Timeouts
from holdfast.model.record import replace
from tests.each import each

pytestmark = pytest.mark.pure

SPEC = JobSpec("t", ("true",), "/w", gpus=GpuRequest(count=1))
TEXT = """\
# agreed on in June
lease_dir = "/var/lib/holdfast"   # local disk
min_free = "4GB"
max_hold = '24h'
grace_max = "5m"
max_wait = 3600
max_cards = 2
nice = 15
allow_normal_priority = false
allowed_hours = ["20:00-08:00", "12:00-13:00"]

[idle]
max_utilisation = 5
max_used = "500MiB"
"""
RULES = parse_rules(TEXT, "/etc/r.toml")


def test_every_rule_is_read() -> None:
    expected = Rules(
        *("/var/lib/holdfast", 4_000_000_000, 86400.0, 300.0, 3600.0, 2, 15, False, ((1200, 480), (720, 780))),
        idle_utilisation_pct=5,
        idle_used_bytes=500 * 1024**2,
        sources=("/etc/r.toml",),
    )
    assert expected == RULES


def test_json_says_the_same() -> None:
    text = """{"lease_dir": "/var/lib/holdfast", "min_free": "4GB", "max_hold": "24h", "grace_max": "5m",
    "max_wait": 3600,
    "max_cards": 2, "nice": 15, "allow_normal_priority": false, "allowed_hours": ["20:00-08:00", "12:00-13:00"],
    "idle": {"max_utilisation": 5, "max_used": "500MiB"}}"""
    assert parse_rules(text, "/etc/r.toml") == RULES


def test_an_empty_file_has_the_defaults() -> None:
    assert parse_rules("\n# nothing yet\n", "r") == Rules(sources=("r",))


def test_strings_with_hashes_and_escapes() -> None:
    assert parse_rules(r'lease_dir = "/a#b\"c"  # why', "r").lease_dir == '/a#b"c'
    assert parse_rules(r"lease_dir = '/a\b'", "r").lease_dir == r"/a\b"


@each(
    ("text", "message"),
    [
        ("max_hodl = '1h'", "r:1: unknown rule 'max_hodl'; did you mean max_hold?"),
        ("\nmax_hold 24h", "r:2: expected `key = value`"),
        ("max_hold = 24h", "r:1: '24h' is not a number"),
        ("max_hold = '1h'\nmax_hold = '2h'", "r:2: 'max_hold' is given twice"),
        ("max_hold = true", "r:1: max_hold: expected a duration"),
        ("max_hold = 'soon'", "r:1: max_hold: 'soon' is not a duration"),
        ("max_hold =", "r:1: expected `key = value`"),
        ("nice = 20", "r:1: nice: expected a whole number from 0 to 19"),
        ("nice = 1.5", "r:1: nice: expected a whole number"),
        ("nice = -5", "r:1: nice: expected a whole number"),
        ("allowed_hours = '25:00-08:00'", "r:1: allowed_hours: expected hours"),
        ("allowed_hours = 'night'", "r:1: allowed_hours: expected hours"),
        ("allowed_hours = ['20:00-08:00' '1:00-2:00']", "r:1: expected one value or a list"),
        ("allowed_hours = ['20:00-08:00'", "r:1: expected one value or a list"),
        ("lease_dir = 'relative'", "r:1: lease_dir: expected an absolute path"),
        ('lease_dir = "unclosed', "r:1: cannot read the value"),
        ('lease_dir = "\\q"', "r:1: unknown escape"),
        ("min_free = true", "r:1: min_free: expected a size"),
        ("allowed_hours = '24:30-08:00'", "r:1: allowed_hours: expected hours"),
        ('{"a": ' * 100_000, "r: nested too deeply"),
        ("max_cards = 0", "r:1: max_cards: expected a whole number"),
        ("allow_normal_priority = 'no'", "r:1: allow_normal_priority: expected true or false"),
        ("[idle]\nusage = 3", "r:2: unknown rule 'idle.usage'"),
        ('{"nice": 3, "nice": 4}', "r: 'nice' is given twice"),
        ('{"nice": }', "r: "),
        ("{" * 5, "r: "),
        ("[xid]\n79 = 'harmless'", "r:2: Xid 79: 'harmless' is no severity; known are app, ask, card, host, watch"),
        ("[xid]\n79 = 1", "r:2: Xid 79: 1 is no severity"),
        ("[xid]\nfatal = 'card'", "r:2: a Xid is a whole number from 1 to 999, found 'fatal'"),
        ("[xid]\n079 = 'card'", "r:2: a Xid is a whole number"),
        ("[xid]\n0 = 'card'", "r:2: a Xid is a whole number"),
        ("[xid]\n79 = 'card'\n79 = 'watch'", "r:3: 'xid.79' is given twice"),
        ('{"xid": {"1000": "card"}}', "r: a Xid is a whole number"),
        ("xid = 'card'", "r:1: unknown rule 'xid'"),
    ],
)
def test_a_malformed_file_names_the_line(text: str, message: str) -> None:
    with pytest.raises(RulesError) as caught:
        parse_rules(text, "r")
    assert str(caught.value).startswith(message)


@pytest.mark.requirement("ETIQ-09")
def test_ETIQ_09_a_job_cannot_exceed_the_maximum_hold() -> None:
    asked = replace(SPEC, gpu=GpuOptions(max_hold_s=48 * 3600.0, wait_s=7200.0), timeouts=Timeouts(run_s=30 * 3600.0))
    allowed, findings = apply_rules(asked, RULES)
    assert allowed.gpu.max_hold_s == 86400.0
    assert allowed.gpu.wait_s == 3600.0
    assert [item.id for item in findings] == ["rules.max_hold", "rules.max_hold", "rules.max_wait"]
    assert "asks for 2d00h; /etc/r.toml allows 1d00h (max_hold)" in findings[0].evidence
    assert apply_rules(SPEC, RULES)[0].gpu.max_hold_s == 86400.0
    assert apply_rules(replace(SPEC, gpu=GpuOptions(max_hold_s=60.0)), RULES)[0].gpu.max_hold_s == 60.0


@pytest.mark.requirement("ETIQ-09")
def test_ETIQ_09_the_file_lowers_min_free_and_a_job_may_only_ask_for_more() -> None:
    assert card_rules(SPEC, Rules()).min_free_bytes == 10 * 1024**3
    assert card_rules(SPEC, RULES).min_free_bytes == 4_000_000_000
    more = replace(SPEC, gpu=GpuOptions(min_free_bytes=8_000_000_000))
    less = replace(SPEC, gpu=GpuOptions(min_free_bytes=1_000_000_000))
    assert card_rules(more, RULES).min_free_bytes == 8_000_000_000
    assert card_rules(less, RULES).min_free_bytes == 4_000_000_000
    assert card_rules(less, Rules()).min_free_bytes == 1_000_000_000
    allowed, findings = apply_rules(less, RULES)
    assert allowed.gpu.min_free_bytes == 4_000_000_000
    assert [item.id for item in findings] == ["rules.min_free"]
    assert card_rules(SPEC, RULES).max_used_bytes == 500 * 1024**2


@pytest.mark.requirement("ETIQ-09")
def test_ETIQ_09_grace_priority_and_cards() -> None:
    asked = replace(SPEC, gpus=GpuRequest(count=3), grace_s=900.0, priority=Priority.NORMAL)
    allowed, findings = apply_rules(asked, RULES)
    assert (allowed.grace_s, allowed.grace_max_s, allowed.priority) == (300.0, 300.0, Priority.LOW)
    assert [(item.id, item.level) for item in findings] == [
        ("rules.max_cards", Level.FAIL),
        ("rules.grace_max", Level.WARN),
        ("rules.priority", Level.WARN),
    ]


def test_without_rules_a_job_is_left_alone() -> None:
    assert apply_rules(SPEC, Rules()) == (SPEC, ())


@pytest.mark.requirement("ETIQ-09")
@pytest.mark.parametrize(
    ("minute", "allowed"), [(1199, False), (1200, True), (0, True), (479, True), (480, False), (720, True)]
)
def test_ETIQ_09_allowed_hours(minute: int, allowed: bool) -> None:
    finding = judge_hours(RULES, minute)
    assert (finding is None) is allowed


def test_a_refusal_by_the_clock_says_when() -> None:
    finding = judge_hours(RULES, 13 * 60 + 30)
    assert finding is not None
    assert finding.level is Level.FAIL
    assert "it is 13:30" in finding.evidence
    assert "20:00" in finding.remedy
    assert judge_hours(Rules(), 5) is None


@pytest.mark.requirement("GPUH-03")
def test_GPUH_03_the_severity_of_a_xid_can_be_set() -> None:
    rules = parse_rules('[xid]\n63 = "card"  # exchanged at once here\n94 = "watch"\n', "r")
    assert rules.xids == {63: "card", 94: "watch"}
    assert parse_rules('{"xid": {"63": "card", "94": "watch"}}', "r") == rules


def test_every_word_for_a_xid_is_one_that_the_diagnosis_knows() -> None:
    assert {severity.value for severity in Severity} == XID_SEVERITIES


def test_of_two_files_the_machines_word_for_a_xid_holds() -> None:
    machine, own = Rules(xids={63: "card"}), Rules(xids={63: "watch", 94: "host"})
    assert combine_rules(machine, own).xids == {63: "card", 94: "host"}


def test_two_files_give_the_stricter_of_each() -> None:
    both = combine_rules(RULES, Rules(max_hold_s=60.0, nice=3, max_cards=9, lease_dir="/x", sources=("own",)))
    assert (both.max_hold_s, both.nice, both.max_cards, both.lease_dir) == (60.0, 15, 2, "/var/lib/holdfast")
    assert both.allow_normal_priority is False
    assert both.sources == ("/etc/r.toml", "own")


SHARES = """\
quiet_times = ["09:00-17:00"]
reserve_max = "8h"
reserve_cards_max = 2

[share]
cards_per_user = 2
max_cards_per_user = 4
hours_per_week = 100
hours_per_week_max = 200.5
starve_after = "6h"
"""


@pytest.mark.requirement("ETIQ-09")
def test_the_rules_between_people_are_read() -> None:
    rules = parse_rules(SHARES, "r")
    assert (rules.cards_per_user, rules.max_cards_per_user) == (2, 4)
    assert (rules.hours_per_week, rules.hours_per_week_max, rules.starve_after_s) == (100.0, 200.5, 21_600.0)
    assert (rules.quiet_times, rules.reserve_max_s, rules.reserve_cards_max) == (((540, 1020),), 28_800.0, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[share]\ncards_per_usr = 1", "r:2: unknown rule 'share.cards_per_usr'; did you mean share.cards_per_user?"),
        ("[share]\nhours_per_week = '9'", "r:2: share.hours_per_week: expected a number of GPU-hours"),
        ("[share]\ncards_per_user = 0", "r:2: share.cards_per_user: expected a whole number from 1"),
        ("quiet_times = ['25:00-26:00']", "r:1: quiet_times: expected hours"),
    ],
)
def test_a_share_that_is_misread_is_an_error(text: str, message: str) -> None:
    with pytest.raises(RulesError) as caught:
        parse_rules(text, "r")
    assert str(caught.value).startswith(message)


@pytest.mark.requirement("ETIQ-09")
def test_ones_own_file_cannot_widen_a_share() -> None:
    machine = parse_rules(SHARES, "/etc/r.toml")
    own = parse_rules(
        "quiet_times = ['20:00-21:00']\nreserve_max = '48h'\n[share]\ncards_per_user = 9\nmax_cards_per_user = 1\n"
        "hours_per_week_max = 999\nstarve_after = '1s'\n",
        "own",
    )
    both = combine_rules(machine, own)
    assert (both.cards_per_user, both.max_cards_per_user, both.hours_per_week_max) == (2, 1, 200.5)
    assert both.starve_after_s == 21_600.0
    assert both.quiet_times == ((540, 1020), (1200, 1260))
    assert both.reserve_max_s == 28_800.0


def test_more_cards_than_an_account_may_have_is_refused_before_anything_starts() -> None:
    findings = apply_rules(replace(SPEC, gpus=GpuRequest(count=5)), parse_rules(SHARES, "r"))[1]
    assert [(item.id, item.level) for item in findings] == [("rules.max_cards_per_user", Level.FAIL)]


def test_in_quiet_times_no_card_is_taken_and_the_end_of_them_is_named() -> None:
    rules = parse_rules(SHARES, "r")
    finding = judge_hours(rules, 10 * 60)
    assert finding is not None
    assert (finding.id, finding.level) == ("rules.quiet_times", Level.FAIL)
    assert "09:00-17:00" in finding.evidence
    assert "17:00" in finding.remedy
    assert judge_hours(rules, 17 * 60) is None
    # Allowed from 16:00 on, and quiet until 17:00: the later of both is when it opens.
    both = replace(rules, allowed_hours=((16 * 60, 20 * 60),))
    closed = judge_hours(both, 15 * 60)
    assert closed is not None
    assert "17:00" in closed.remedy
    never = judge_hours(replace(rules, quiet_times=((0, 1440),)), 600)
    assert never is not None
    assert "whoever wrote the rules" in never.remedy
