"""Schema, inheritance, survival and age of profiles."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.profile.merge import Layer, build_profile, find_gaps, merge
from holdfast.core.profile.schema import SECTIONS, Problem, check_file
from holdfast.core.profile.stale import describe_age, stale_facts
from holdfast.core.profile.survive import find_tier, list_lasting, survives
from holdfast.model.errors import UsageError
from holdfast.model.profile import Profile

pytestmark = pytest.mark.pure

STAMP = {"verified_on": "2026-06-01", "source": "a page"}
BASE: dict[str, Any] = {
    "title": "base",
    "kind": "ssh",
    "metered": "money",
    "meter_stop": "destroy",
    "detach": "holdfast",
    "currency": "",
    **STAMP,
    "grace": "30s",
    "tiers": {
        "disk": {"paths": ["/", "~"], "survives": {"destroy": "no"}},
        "scratch": {"paths": ["/scratch", "$SCRATCH"], "survives": {"destroy": "yes"}, "cap": "200GB"},
        "volume": {"paths": ["/scratch/volume"], "survives": {"destroy": "depends"}, "note": "look"},
    },
    "verbs": {"destroy": {"how": "press it", "irreversible": True, "stops_meter": True}},
    "clocks": {"idle": {"begins": "idle", "after": "15d", "what": "released"}},
    "sections": dict.fromkeys(SECTIONS, "words"),
}


def check(content: dict[str, Any], *, own: bool = True) -> list[Problem]:
    return check_file(content, own=own)[1]


def make(*contents: dict[str, Any]) -> Profile:
    layers = []
    for number, content in enumerate((BASE, *contents)):
        stated, problems = check_file(content, own=True)
        assert not problems
        layers.append(Layer(f"file {number}", stated))
    merged = merge(layers)
    assert not find_gaps(merged)
    return build_profile("some", "", merged)


@pytest.mark.requirement("PROF-01")
def test_a_file_is_read_into_a_profile_with_units_made_plain() -> None:
    made = make()
    assert made.grace_s == 30
    assert made.clocks[0].after_s == 15 * 86400
    assert made.tiers[1].cap_bytes == 200_000_000_000
    assert made.facts["grace"].verified_on == made.facts["tiers.disk"].verified_on == "2026-06-01"


@pytest.mark.parametrize(
    ("content", "path", "words"),
    [
        ({"titel": "x"}, ("titel",), "did you mean title?"),
        ({"tiers": {"disk": {"survive": {}}}}, ("tiers", "disk", "survive"), "did you mean survives?"),
        ({"verbs": {"x": {"irreversibel": True}}}, ("verbs", "x", "irreversibel"), "did you mean irreversible?"),
        ({"variables": {"DATADIR": "/x"}}, ("variables", "DATADIR"), "did you mean DATA_DIR?"),
        ({"home": "login", **STAMP}, ("home",), "no absolute path"),
        ({"metered": "monney"}, ("metered",), "money?"),
        ({"grace": "soon"}, ("grace",), "not a duration"),
        ({"grace": 5}, ("grace",), "without verified_on and source; write them in [facts.grace]"),
        ({"grace": 5, "verified_on": "2026-06-01"}, ("grace",), "without source"),
        ({"tiers": {"disk": {"paths": ["/"]}}}, ("tiers", "disk"), "in [tiers.disk], or at the top"),
        ({"verified_on": "June"}, ("verified_on",), "write it like 2026-06-01"),
        ({"source": ""}, ("source",), "say where it is from"),
        ({"tiers": {"disk": {"paths": ["disk"], **STAMP}}}, ("tiers", "disk", "paths"), "no beginning of paths"),
        ({"tiers": {"disk": {"survives": {"stop": "maybe"}, **STAMP}}}, ("tiers", "disk", "survives"), "none of yes"),
        ({"tiers": 5}, ("tiers",), "expected a table"),
        ({"spot": "yes", **STAMP}, ("spot",), 'true, false or "measure"'),
    ],
)
def test_what_is_wrong_in_a_file_is_named(content: dict[str, Any], path: tuple[str, ...], words: str) -> None:
    found = [problem for problem in check(content) if problem.path == path]
    assert found
    assert words in found[0].words


@pytest.mark.requirement("PROF-13")
def test_a_secret_is_refused_and_not_repeated() -> None:
    secret = "ghp_" + "a1B2" * 9
    found = check({"variables": {"CRED_FILE": secret}})
    assert "looks like a secret" in found[0].words
    assert secret not in found[0].words


@pytest.mark.requirement("RAIL-14")
def test_a_hook_stands_in_the_users_own_file_only() -> None:
    content = {"variables": {"PROXY_HOOK": ". /etc/proxy"}}
    assert not check(content, own=True)
    assert "a file of your own only" in check(content, own=False)[0].words


def test_what_is_to_be_measured_needs_no_stamp_and_takes_the_constant_away() -> None:
    made = make({"grace": "measure"})
    assert made.grace_s is None
    assert "grace" not in made.facts


@pytest.mark.requirement("PROF-09")
def test_a_later_file_stands_over_an_earlier_one_key_by_key_with_provenance() -> None:
    over = {"tiers": {"volume": {"survives": {"destroy": "yes"}, "verified_on": "2026-11-01", "source": "tried it"}}}
    made = make(over)
    assert made.tiers[2].paths == ("/scratch/volume",)
    assert made.tiers[2].survives == {"destroy": "yes"}
    assert made.facts["tiers.volume"].source == "tried it"
    assert made.origins["tiers.volume.survives.destroy"] == "file 1"
    assert made.origins["tiers.volume.paths"] == "file 0"


def test_a_fact_is_verified_again_without_being_said_again() -> None:
    made = make({"facts": {"grace": {"verified_on": "2026-11-01", "source": "measured"}}})
    assert made.grace_s == 30
    assert made.facts["grace"].verified_on == "2026-11-01"


def test_inherited_tables_are_left_out() -> None:
    made = make({"leaves_out": ["tiers.volume", "clocks"]})
    assert [tier.name for tier in made.tiers] == ["disk", "scratch"]
    assert made.clocks == ()
    assert not [key for key in made.facts if key.startswith(("clocks", "tiers.volume"))]


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"leaves_out": ["verbs"]}, "'destroy' is no verb of this profile"),
        ({"meter_stop": "stop", **STAMP}, "'stop' is no verb of this profile; the verbs are destroy"),
        ({"meter_stop": "", **STAMP}, "says which of its verbs stops it"),
        ({"tiers": {"new": {"paths": ["/new"], **STAMP}}}, "has no survives"),
        ({"sections": {"launch": ""}}, "says something of all eight"),
    ],
)
@pytest.mark.requirement("PROF-02")
def test_gaps_of_all_files_together_are_found(over: dict[str, Any], words: str) -> None:
    layers = [Layer("f", check_file(content, own=True)[0]) for content in (BASE, over)]
    assert words in "\n".join(gap.words for gap in find_gaps(merge(layers)))


@pytest.mark.requirement("PROF-03")
@pytest.mark.parametrize(
    ("path", "answer", "tier"),
    [
        ("/scratch", "yes", "scratch"),
        ("/scratch/x/../y", "yes", "scratch"),
        ("//scratch/./x/", "yes", "scratch"),
        ("/scratchy", "no", "disk"),
        ("/scratch/volume/x", "depends", "volume"),
        ("~/x", "no", "disk"),
        ("$SCRATCH/x", "yes", "scratch"),
        ("$OTHER/x", "depends", ""),
        ("relative", "depends", ""),
    ],
)
def test_the_longest_beginning_of_a_path_answers(path: str, answer: str, tier: str) -> None:
    found = survives(make(), path, "destroy")
    assert (found.answer, found.tier) == (answer, tier)
    assert found.proven == (answer == "yes")


@pytest.mark.requirement("PROF-03")
@pytest.mark.parametrize("path", ["~/volume/x", "/login/volume/x"])
def test_a_home_that_is_known_is_the_same_by_both_names(path: str) -> None:
    volume = {"paths": ["~/volume"], "survives": {"destroy": "yes"}}
    variables = {"DATA_DIR": "~/volume", "PROXY_HOOK": "~/proxy.sh"}
    known = make({"home": "/login/", "tiers": {"mine": volume}, "variables": variables, **STAMP})
    assert survives(known, path, "destroy").tier == "mine"
    assert survives(known, "~", "destroy").tier == "disk"
    assert known.variables == {"DATA_DIR": "/login/volume", "PROXY_HOOK": "~/proxy.sh"}
    unknown = make({"tiers": {"mine": volume}, **STAMP})
    assert survives(unknown, path, "destroy").tier == ("mine" if path.startswith("~") else "disk")


def test_links_are_followed_where_they_can_be_measured() -> None:
    links = {"/home/me/data": "/scratch/data"}
    found = survives(make(), "/home/me/data", "destroy", lambda path: links.get(path, path))
    assert found.tier == "scratch"


def test_an_unknown_verb_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="there are destroy"):
        survives(make(), "/x", "destory")


def test_the_tiers_that_last_are_named() -> None:
    assert [tier.name for tier in list_lasting(make(), "destroy")] == ["scratch"]
    assert find_tier(make(leaves_nothing := {"leaves_out": ["tiers"]}), "/x") is None, leaves_nothing


@pytest.mark.requirement("PROF-08")
def test_a_fact_seven_months_old_is_stale() -> None:
    made = make({"facts": {"grace": {"verified_on": "2026-12-20", "source": "measured"}}})
    assert set(stale_facts(made, "2027-01-02")) == set(made.facts) - {"grace"}
    assert set(stale_facts(made, "2027-01-02", ["verbs"])) == {"verbs.destroy", "verbs.stop"} & set(made.facts)
    assert not stale_facts(made, "2027-01-02", ["grace"])
    assert set(stale_facts(made, "2026-11-23")) == {"grace"}, "verified on a day to come"
    assert describe_age(made, "2026-11-23") == "grace was verified on 2026-12-20, a day to come"


def test_a_fact_keeps_its_words_when_it_is_verified_again_and_goes_when_it_is_left_out() -> None:
    said = {"facts": {"ports": {"text": "64 at most", **STAMP}}}
    again = {"facts": {"ports": {"verified_on": "2026-11-01", "source": "looked"}}}
    assert make(said, again).facts["ports"].text == "64 at most"
    assert make(said, again).facts["ports"].source == "looked"
    assert "ports" not in make(said, {"leaves_out": ["facts"]}).facts
