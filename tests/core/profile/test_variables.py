"""What jobs get of a profile, what of it goes along, and what is doubtful in one."""

from __future__ import annotations

import pytest

from holdfast.core.profile.lint import lint, list_dangers
from holdfast.core.profile.variables import choose_variables, for_box, list_hooks
from holdfast.model.finding import Level
from holdfast.model.job import JobSpec
from holdfast.model.profile import Clock, EndVerb, Fact, Profile, Tier

pytestmark = pytest.mark.pure

JOB = JobSpec("job", ("true",), "/")
PROFILE = Profile(
    "p",
    "P",
    metered="money",
    meter_stop="destroy",
    tiers=(Tier("disk", ("/",), {"destroy": "no"}), Tier("kept", ("/kept",), {"destroy": "yes"})),
    verbs=(EndVerb("destroy", "press", stops_meter=True, irreversible=True, destroys=("the disk",)),),
    clocks=(Clock("idle", "power-off", 15 * 86400.0, "released"),),
    variables={"DATA_DIR": "$SCRATCH_ROOT/me", "HF_HOME": "~/hf", "DURABLE_DIR": "/kept", "PROXY_HOOK": ". /etc/proxy"},
    sections={"launch": "words"},
    facts={"verbs.destroy": Fact("", "2026-06-01", "a page")},
    origins={"title": "a file"},
)


def home(path: str) -> str:
    return path.replace("~", "/home/me", 1)


@pytest.mark.requirement("PROF-07")
def test_variables_are_expanded_as_the_box_has_them() -> None:
    assert choose_variables(PROFILE, JOB, {"SCRATCH_ROOT": "/s"}, home) == {
        "DATA_DIR": "/s/me",
        "DURABLE_DIR": "/kept",
        "HF_HOME": "/home/me/hf",
        "PROXY_HOOK": ". /etc/proxy",
        "CRED_FILE": "",
        "DETACH": "holdfast",
    }


@pytest.mark.requirement("PROF-07", "STOR-05")
def test_what_the_user_or_the_job_says_stands() -> None:
    job = JobSpec("job", ("true",), "/", env={"DURABLE_DIR": "/mine"}, caches="/caches")
    chosen = choose_variables(PROFILE, job, {"PROXY_HOOK": "", "DETACH": "tmux"}, home)
    assert chosen == {"CRED_FILE": ""}, "DATA_DIR names a variable that is not set; caches of the job decide HF_HOME"


def test_the_box_gets_no_text_for_people_and_hooks_come_before_the_job() -> None:
    sent = for_box(PROFILE)
    assert (sent.sections, sent.facts, sent.origins) == ({}, {}, {})
    assert (sent.tiers, sent.verbs, sent.variables) == (PROFILE.tiers, PROFILE.verbs, PROFILE.variables)
    assert (list_hooks(PROFILE), list_hooks(Profile("q", "Q")), list_hooks(None)) == ((". /etc/proxy",), (), ())


@pytest.mark.requirement("PROF-05")
def test_clocks_and_what_cannot_be_undone_are_dangers() -> None:
    assert list_dangers(PROFILE) == (
        "15 days after power-off: released",
        "destroy cannot be undone; it destroys the disk",
    )


@pytest.mark.requirement("PROF-13", "PROF-08")
@pytest.mark.parametrize(
    ("variables", "day", "expected"),
    [
        ({"DURABLE_DIR": "/kept"}, "2026-11-23", [("profile", Level.PASS)]),
        ({"DURABLE_DIR": "/data"}, "2026-11-23", [("profile.durable", Level.FAIL)]),
        ({"DURABLE_DIR": "$ELSEWHERE"}, "2026-11-23", [("profile.durable", Level.WARN)]),
        ({"DURABLE_DIR": "/kept", "DATA_DIR": "/kept"}, "2026-11-23", [("profile.durable", Level.WARN)]),
        ({}, "2027-01-02", [("profile.stale", Level.WARN)]),
        ({}, "2026-05-01", [("profile.stale", Level.WARN)]),
    ],
)
def test_PROF_13_each_defect_is_found(variables: dict[str, str], day: str, expected: list[tuple[str, Level]]) -> None:
    profile = Profile(
        "p",
        "P",
        meter_stop="destroy",
        tiers=PROFILE.tiers,
        verbs=PROFILE.verbs,
        variables=variables,
        facts=PROFILE.facts,
    )
    assert [(found.id, found.level) for found in lint(profile, day)] == expected


@pytest.mark.requirement("PROF-13")
def test_tiers_that_answer_nothing_are_found() -> None:
    profile = Profile("p", "P", tiers=(Tier("disk", (), {}),), verbs=PROFILE.verbs)
    words = [f"{found.level.value} {found.evidence}" for found in lint(profile, "2026-11-23")]
    assert words == [
        "warn it is not said whether it outlives destroy",
        "unknown where it is mounted is not known: no path is ever in it",
    ]
