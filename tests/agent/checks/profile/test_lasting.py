"""What of a job outlives the end of a rented box, by the profile of the place."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.checks.context import CheckContext
from holdfast.agent.checks.preflight import CHECKS
from holdfast.agent.checks.profile import lasting
from holdfast.core.rules.rules import Rules
from holdfast.host.files.disks import measure_space
from holdfast.model import wire
from holdfast.model.finding import Finding, Level
from holdfast.model.job import Checkpoints, DiskNeeds, JobSpec, Results, Timeouts
from holdfast.model.profile import EndVerb, Profile, Tier
from holdfast.model.record import replace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.files

MEASURE = "holdfast.agent.checks.profile.lasting.measure_space"
DESTROY = EndVerb("destroy", "press it", stops_meter=True, irreversible=True)


@pytest.fixture(autouse=True)
def _disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary directories may lie in memory here; what is in memory has a test of its own."""
    monkeypatch.setattr(MEASURE, lambda *asked: replace(measure_space(*asked), is_memory=False))


def rented(tmp_path: Path, **fields: Any) -> Profile:
    """A place whose disk goes with it, but for `lasts`; a volume depends."""
    for name in ("runs", "lasts", "volume"):
        (tmp_path / name).mkdir(exist_ok=True)
    tiers = (
        Tier("disk", ("/", "~"), {"destroy": "no"}, note="goes with the box"),
        Tier("kept", (f"{tmp_path}/lasts",), {"destroy": "yes"}),
        Tier("volume", (f"{tmp_path}/volume",), {"destroy": "depends"}, note="look which one it is"),
    )
    made: dict[str, Any] = {"metered": "money", "meter_stop": "destroy", "tiers": tiers, "verbs": (DESTROY,), **fields}
    return Profile("rented", "A rented box", **made)


def situation(
    tmp_path: Path, profile: Profile | None, environ: dict[str, str] | None = None, **job: Any
) -> CheckContext:
    spec = JobSpec("job", ("true",), str(tmp_path), **job)
    run_dir = f"{tmp_path}/runs/run"
    return CheckContext(spec, Rules(), {"HOME": str(tmp_path), **(environ or {})}, run_dir=run_dir, profile=profile)


def look(found: Iterator[Finding]) -> list[tuple[str, Level]]:
    return [(item.id.partition(".")[2], item.level) for item in found]


def test_nothing_is_said_without_a_profile_or_a_meter(tmp_path: Path) -> None:
    checks = (lasting.check_lasting, lasting.check_interruption, lasting.check_runtime_cap)
    assert set(checks) < set(CHECKS)
    owned = Profile("local", "mine", tiers=rented(tmp_path).tiers)
    for profile in (None, owned):
        at = situation(tmp_path, profile, {"DURABLE_DIR": "/nowhere"})
        assert [look(check(at)) for check in checks] == [[], [], []]


@pytest.mark.requirement("PRE-15")
@pytest.mark.parametrize("place", ["runs", "volume"])
def test_PRE_15_a_mirror_that_does_not_outlive_the_box_is_refused_with_what_does(tmp_path: Path, place: str) -> None:
    at = situation(tmp_path, rented(tmp_path), checkpoints=Checkpoints(mirror=f"{tmp_path}/{place}/mirror"))
    mirror, checkpoints = lasting.check_lasting(at)
    assert (mirror.id, mirror.level, mirror.remedy) == (
        "lasting.mirror",
        Level.FAIL,
        f"{tmp_path}/lasts outlives destroy",
    )
    assert ("may not" if place == "volume" else "does not") in mirror.evidence
    assert checkpoints.level is Level.WARN


@pytest.mark.requirement("PRE-15")
def test_PRE_15_results_that_go_with_the_box_are_refused(tmp_path: Path) -> None:
    results, _ = lasting.check_lasting(situation(tmp_path, rented(tmp_path), results=Results(to=f"{tmp_path}/runs/r")))
    assert (results.id, results.level, "results.to does not outlive" in results.evidence) == (
        "lasting.results",
        Level.FAIL,
        True,
    )


@pytest.mark.requirement("PRE-15")
def test_PRE_15_a_durable_directory_in_the_jobs_temporary_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    slurm = rented(tmp_path, tiers=(*rented(tmp_path).tiers, Tier("node", ("$TMPDIR",), {"destroy": "no"})))
    environ = {"TMPDIR": f"{tmp_path}/tmp", "DURABLE_DIR": f"{tmp_path}/tmp/keep"}
    durable, _ = lasting.check_lasting(situation(tmp_path, slurm, environ))
    assert (durable.id, durable.level) == ("lasting.durable", Level.FAIL)
    assert "the tier node" in durable.evidence


@pytest.mark.requirement("PRE-15", "CKPT-06")
def test_PRE_15_what_lasts_takes_a_probe_and_nothing_of_it_stays(tmp_path: Path) -> None:
    environ = {"DURABLE_DIR": f"{tmp_path}/lasts"}
    at = situation(tmp_path, rented(tmp_path), environ, checkpoints=Checkpoints(mirror=f"{tmp_path}/lasts/new/mirror"))
    assert look(lasting.check_lasting(at)) == [("mirror", Level.PASS), ("durable", Level.PASS)]
    assert os.listdir(tmp_path / "lasts") == []


@pytest.mark.requirement("PRE-15")
def test_PRE_15_a_directory_that_takes_no_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_directory: str) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(lasting, "_write_probe", refuse)
    durable, _ = lasting.check_lasting(situation(tmp_path, rented(tmp_path), {"DURABLE_DIR": f"{tmp_path}/lasts"}))
    assert durable.level is Level.FAIL
    assert "Read-only file system" in durable.evidence


@pytest.mark.requirement("PROF-06")
def test_what_is_measured_goes_before_what_the_profile_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MEASURE, lambda *asked: replace(measure_space(*asked), is_memory=True))
    durable, _ = lasting.check_lasting(situation(tmp_path, rented(tmp_path), {"DURABLE_DIR": f"{tmp_path}/lasts"}))
    assert durable.level is Level.FAIL
    assert "lies in memory" in durable.evidence


def test_links_are_followed_to_the_tier(tmp_path: Path) -> None:
    profile = rented(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "lasts")
    (tmp_path / "lasts" / "back").symlink_to(tmp_path / "runs")
    good, _ = lasting.check_lasting(situation(tmp_path, profile, {"DURABLE_DIR": f"{tmp_path}/link/x"}))
    bad, _ = lasting.check_lasting(situation(tmp_path, profile, {"DURABLE_DIR": f"{tmp_path}/lasts/back/x"}))
    assert (good.level, bad.level) == (Level.PASS, Level.FAIL)


@pytest.mark.requirement("CKPT-06", "COL-04")
def test_checkpoints_that_go_with_the_box_are_refused_where_something_else_is_there(tmp_path: Path) -> None:
    every: dict[str, Any] = {"checkpoints": Checkpoints(every="600s")}
    (refused,) = lasting.check_lasting(situation(tmp_path, rented(tmp_path), **every))
    assert (refused.id, refused.level) == ("lasting.checkpoints", Level.FAIL)
    assert f"checkpoints.mirror: {tmp_path}/lasts/checkpoints" in refused.remedy
    unsure: dict[str, Any] = {"disk": DiskNeeds(paths=(f"{tmp_path}/volume/checkpoints",))}
    assert look(lasting.check_lasting(situation(tmp_path, rented(tmp_path), **unsure))) == [("checkpoints", Level.WARN)]
    elsewhere: dict[str, Any] = {"disk": DiskNeeds(paths=(f"{tmp_path}/lasts/checkpoints",))}
    assert look(lasting.check_lasting(situation(tmp_path, rented(tmp_path), **elsewhere, **every))) == [
        ("checkpoints", Level.PASS)
    ]


def test_where_nothing_lasts_a_person_is_told_what_to_pull(tmp_path: Path) -> None:
    profile = rented(tmp_path, tiers=rented(tmp_path).tiers[:1])
    (told,) = lasting.check_lasting(situation(tmp_path, profile, checkpoints=Checkpoints(every="600s")))
    assert told.level is Level.WARN
    assert told.remedy.startswith("pull the run before destroy (`holdfast pull`); nothing on this box outlives")
    (told,) = lasting.check_lasting(situation(tmp_path, rented(tmp_path)))
    assert (told.level, f"{tmp_path}/lasts outlives destroy" in told.remedy) == (Level.WARN, True)


def test_a_tier_that_is_not_on_this_box_is_named(tmp_path: Path) -> None:
    tiers = (rented(tmp_path).tiers[0], Tier("netdisk", ("/no-such-netdisk",), {"destroy": "yes"}))
    (told,) = lasting.check_lasting(situation(tmp_path, rented(tmp_path, tiers=tiers)))
    assert "netdisk (/no-such-netdisk) would outlive destroy, and is not on this box" in told.remedy


def save_took(tmp_path: Path, seconds: float) -> None:
    attempt = tmp_path / "runs" / "run" / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / wire.HEARTBEAT).write_bytes(wire.to_bytes({"save_seconds": seconds}))


@pytest.mark.requirement("SPOT-01")
@pytest.mark.parametrize(
    ("grace_s", "save_s", "level", "words"),
    [
        (0.0, None, Level.WARN, "without notice: no last save, the timer only"),
        (5.0, 10.0, Level.WARN, "gives 5.0 s, and a save took 10 s: no last save fits, the timer only"),
        (30.0, 10.0, Level.PASS, "and a save took 10 s: timer and a last save"),
        (30.0, None, Level.PASS, "gives 30 s: timer and a last save"),
    ],
)
def test_SPOT_01_timer_only_is_said(
    tmp_path: Path, grace_s: float, save_s: float | None, level: Level, words: str
) -> None:
    profile = rented(tmp_path, spot=True, grace_s=grace_s)
    if save_s is not None:
        save_took(tmp_path, save_s)
    (told,) = lasting.check_interruption(situation(tmp_path, profile))
    assert (told.level, words in told.evidence) == (level, True), told
    (told,) = lasting.check_interruption(situation(tmp_path, profile, checkpoints=Checkpoints(every="auto")))
    assert told.level is Level.PASS
    assert not look(lasting.check_interruption(situation(tmp_path, replace(profile, spot=False))))


@pytest.mark.requirement("SPOT-07")
@pytest.mark.parametrize(
    ("job", "level"),
    [
        ({"timeouts": Timeouts(run_s=48 * 3600.0)}, Level.WARN),
        ({"expected_s": 48 * 3600.0}, Level.WARN),
        ({"timeouts": Timeouts(run_s=3600.0)}, Level.PASS),
        ({}, Level.PASS),
    ],
)
def test_SPOT_07_a_job_longer_than_one_start_is_warned_of(tmp_path: Path, job: dict[str, Any], level: Level) -> None:
    profile = rented(tmp_path, runtime_cap_s=24 * 3600.0)
    (told,) = lasting.check_runtime_cap(situation(tmp_path, profile, **job))
    assert told.level is level
