"""Results are judged by what is there, not by the exit code."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.checks.postflight import BASELINE, check_results, write_data_baseline
from holdfast.agent.control.create import create_run
from holdfast.host.clock import epoch_s, format_utc
from holdfast.model.finding import Level
from holdfast.model.identity import WaitStatus
from holdfast.model.job import JobSpec
from holdfast.model.record import replace
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.model.finding import Finding

pytestmark = pytest.mark.process
DONE = WaitStatus(0, None)


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    return JobSpec("t", ("true",), str(tmp_path), artifacts=("artifacts/r.json",))


@pytest.fixture
def run_dir(tmp_path: Path, spec: JobSpec) -> str:
    return create_run(spec, str(tmp_path / "runs"), argv=[], cwd="/", environ=os.environ)[0]


def check(
    spec: JobSpec, run_dir: str, started: float = 0.0, status: WaitStatus | None = DONE
) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in check_results(spec, run_dir, 1, started_epoch_s=started, status=status):
        found.setdefault(finding.id, []).append(finding)
    return found


def put(run_dir: str, name: str, text: str = '{"accuracy": 1}', *, mtime: float | None = None) -> None:
    path = f"{run_dir}/{name}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    if mtime is not None:
        os.utime(path, (mtime, mtime))


@pytest.mark.requirement("POST-05")
def test_POST_05_a_fresh_whole_artifact_passes(spec: JobSpec, run_dir: str) -> None:
    started = epoch_s()
    put(run_dir, "artifacts/r.json")
    assert [item.level for item in check(spec, run_dir, started)["artifact"]] == [Level.PASS]


@pytest.mark.requirement("POST-05")
@pytest.mark.parametrize(
    ("text", "age_s", "seen"),
    [
        (None, 0.0, "is not there after exit code 0"),
        ("", 0.0, "is empty"),
        ("{}", 60.0, "1m00s older than the start"),
        ('{"a": ', 0.0, "is not valid JSON"),
    ],
)
def test_POST_05_a_missing_empty_stale_or_torn_artifact_fails(
    spec: JobSpec, run_dir: str, text: str | None, age_s: float, seen: str
) -> None:
    started = float(int(epoch_s())) + 0.5
    if text is not None:
        put(run_dir, "artifacts/r.json", text, mtime=started - age_s)
    (finding,) = check(spec, run_dir, started)["artifact"]
    assert finding.level is Level.FAIL
    assert seen in finding.evidence


@pytest.mark.requirement("POST-05")
@pytest.mark.parametrize("name", ["r.json", "artifacts/r.json"])
def test_POST_05_an_artifact_that_was_written_where_the_job_works_is_told(
    spec: JobSpec, run_dir: str, tmp_path: Path, name: str
) -> None:
    started = epoch_s()
    put(str(tmp_path), name, mtime=started - 60.0)
    assert "the job wrote" not in check(spec, run_dir, started)["artifact"][0].evidence, "it was there before"
    put(str(tmp_path), name)
    (finding,) = check(spec, run_dir, started)["artifact"]
    assert finding.evidence.endswith(f"exit code 0; the job wrote {tmp_path}/{name}, in its working directory")
    assert (finding.level, finding.remedy) == (Level.FAIL, f"have the job write it to {run_dir}/artifacts/r.json")


@pytest.mark.requirement("POST-05")
def test_POST_05_directories_links_and_patterns(spec: JobSpec, run_dir: str) -> None:
    started = epoch_s()
    both = replace(spec, artifacts=("artifacts/*.json", "out", "gone", "pipe"))
    put(run_dir, "artifacts/a.json")
    put(run_dir, "artifacts/b.json")
    put(run_dir, "out/deep/x.txt")
    os.symlink("/nowhere", f"{run_dir}/gone")
    os.mkfifo(f"{run_dir}/pipe")
    levels = [(item.subject, item.level) for item in check(both, run_dir, started)["artifact"]]
    assert [level for _, level in levels] == [Level.PASS, Level.PASS, Level.PASS, Level.FAIL, Level.FAIL]
    os.utime(f"{run_dir}/out/deep/x.txt", (1, 1))
    old = check(replace(spec, artifacts=("out",)), run_dir, started)["artifact"][0]
    assert (old.level, "older than the start" in old.evidence) == (Level.FAIL, True)
    os.mkdir(f"{run_dir}/empty")
    assert check(replace(spec, artifacts=("empty",)), run_dir)["artifact"][0].level is Level.FAIL


@pytest.mark.requirement("POST-05")
@pytest.mark.parametrize("status", [None, WaitStatus(1, None), WaitStatus(None, 9)])
def test_artifacts_of_a_run_that_did_not_end_well_are_not_asked_for(
    spec: JobSpec, run_dir: str, status: WaitStatus | None
) -> None:
    assert "artifact" not in check(spec, run_dir, status=status)


@pytest.mark.requirement("POST-06")
@pytest.mark.parametrize(
    ("took_s", "level"), [(5.0, Level.WARN), (29.0, Level.WARN), (31.0, Level.PASS), (600.0, Level.PASS)]
)
def test_POST_06_a_suspiciously_fast_finish_is_flagged(
    spec: JobSpec, run_dir: str, took_s: float, level: Level
) -> None:
    status = WaitStatus(0, None, ended_at=format_utc(1_700_000_000.0 + took_s))
    found = check(replace(spec, artifacts=(), expected_s=60.0), run_dir, 1_700_000_000.0, status)
    assert [item.level for item in found["duration"]] == [level]
    assert "expected 1m00s" in found["duration"][0].evidence


@pytest.mark.requirement("RAIL-07")
def test_RAIL_07_a_write_to_declared_data_is_flagged(spec: JobSpec, run_dir: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "x.bin").write_bytes(b"1")
    spec = replace(spec, data=(str(data),), artifacts=())
    before = (data / "x.bin").stat().st_mtime_ns
    probe = tmp_path / "tick"
    wait_until(lambda: (probe.write_text(""), probe.stat().st_mtime_ns > before)[1])
    write_data_baseline(spec, run_dir, 1)
    assert check(spec, run_dir)["data"][0].level is Level.PASS
    (data / "x.bin").write_bytes(b"2")
    (finding,) = check(spec, run_dir)["data"]
    assert finding.level is Level.WARN
    assert f"{data}/x.bin has other content" in finding.evidence


def test_a_lost_baseline_is_unknown_not_clean(spec: JobSpec, run_dir: str) -> None:
    spec = replace(spec, data=("/etc",), artifacts=())
    assert check(spec, run_dir)["data"][0].level is Level.UNKNOWN
    put(run_dir, f"attempts/1/{BASELINE}", "{ torn")
    assert check(spec, run_dir)["data"][0].level is Level.UNKNOWN


@pytest.mark.requirement("POST-04")
def test_POST_04_half_written_records_of_the_dead_are_reported(spec: JobSpec, run_dir: str) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    put(run_dir, f"attempts/1/.state.json.{child}.abcd1234.tmp")
    put(run_dir, f"attempts/1/.exit.json.{os.getpid()}.abcd1234.tmp")
    (finding,) = check(replace(spec, artifacts=()), run_dir)["leftovers"]
    assert str(child) in finding.evidence
    assert str(os.getpid()) not in finding.evidence
    assert os.path.exists(f"{run_dir}/attempts/1/.state.json.{child}.abcd1234.tmp")


@pytest.mark.requirement("OBS-02")
def test_OBS_02_checkpoints_are_listed(spec: JobSpec, run_dir: str) -> None:
    started = epoch_s()
    put(run_dir, "checkpoints/step-1.pt", mtime=started - 100)
    put(run_dir, "checkpoints/step-2.pt")
    (finding,) = check(replace(spec, artifacts=()), run_dir, started)["checkpoints"]
    assert finding.evidence == "2; newest step-2.pt, by this attempt"


def test_a_broken_check_is_a_finding(spec: JobSpec, tmp_path: Path) -> None:
    found = check_results(replace(spec, artifacts=()), str(tmp_path), 1, started_epoch_s=0.0, status=DONE)
    assert {item.level for item in found} == {Level.UNKNOWN}
    assert [item.id for item in found] == ["postflight.checkpoints", "postflight.leftovers"]
