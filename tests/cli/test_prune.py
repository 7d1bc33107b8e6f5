"""``holdfast prune``: it shows first, asks, and removes declared scratch only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.control.prune import plan_pruning, prune_scratch
from holdfast.host.process.processes import identify_self
from holdfast.model.errors import UsageError
from tests.cli.live import live_run
from tests.rundirs import ended, make_run, running

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli

RUN = "20261120-100000-digits-0a1b"


@pytest.fixture
def run_dir(isolated_environment: dict[str, str], tmp_path: Path) -> Path:
    path = Path(make_run(isolated_environment["HOLDFAST_RUNS"], RUN, ended()))
    record = json.loads((path / "run.json").read_text())
    record["job"].update(workdir=str(tmp_path), disk={"scratch": ["artifacts/tmp/**"]})
    (path / "run.json").write_text(json.dumps(record))
    for name in ("artifacts/tmp/a", "artifacts/tmp/deep/b", "artifacts/other/c", "artifacts/tmp/metrics.csv"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"x" * 5000)
    return path


def left(run_dir: Path) -> list[str]:
    return sorted(
        str(path.relative_to(run_dir / "artifacts")) for path in run_dir.rglob("artifacts/**/*") if path.is_file()
    )


@pytest.mark.slow
@pytest.mark.requirement("STOR-03", "RAIL-16")
def test_STOR_03_without_consent_it_only_shows(holdfast: Command, run_dir: Path) -> None:
    for args in ((), ("--dry-run", "--yes"), ("--json",)):
        done = holdfast("prune", "digits", *args)
        assert done.code == 0, done
        assert "deep/b" in done.out
        assert len(left(run_dir)) == 4
    assert "would remove 2 files" in holdfast("prune", "digits").err


@pytest.mark.slow
@pytest.mark.requirement("STOR-03")
def test_STOR_03_declared_scratch_goes_and_the_rest_stays(holdfast: Command, run_dir: Path) -> None:
    value = holdfast("prune", "digits", "--yes", "--json").json()
    assert value["removed"] is True
    assert value["done"]["files"] == 2
    assert left(run_dir) == ["other/c", "tmp/metrics.csv"]
    again = holdfast("prune", "digits", "--yes")
    assert (again.code, "nothing to remove" in again.err) == (0, True)


@pytest.mark.slow
def test_more_than_was_declared_needs_its_own_pattern(holdfast: Command, run_dir: Path) -> None:
    assert holdfast("prune", "digits", "--also", "artifacts/other/**", "--yes").code == 0
    assert left(run_dir) == ["tmp/metrics.csv"]


@pytest.mark.requirement("ETIQ-05")
@pytest.mark.parametrize("pattern", ["../x", "/etc/*", "*"])
def test_ETIQ_05_a_pattern_out_of_the_run_is_refused(holdfast: Command, run_dir: Path, pattern: str) -> None:
    done = holdfast("prune", "digits", "--also", pattern, "--yes")
    assert done.code == 64
    assert len(left(run_dir)) == 4


def test_a_run_that_has_not_ended_is_refused(holdfast: Command, isolated_environment: dict[str, str]) -> None:
    make_run(isolated_environment["HOLDFAST_RUNS"], RUN, running(), supervisor=identify_self())
    done = holdfast("prune", "digits", "--yes")
    assert done.code == 64
    assert f"holdfast stop {RUN}" in done.err


@pytest.mark.requirement("ETIQ-05")
def test_ETIQ_05_a_run_that_was_started_again_while_the_question_stood_keeps_everything(run_dir: Path) -> None:
    planned = plan_pruning(str(run_dir), (), dry_run=False)
    assert planned.plan.victims
    make_run(run_dir.parent, RUN, running(), attempt=2, supervisor=identify_self())
    with pytest.raises(UsageError, match="has not ended"):
        prune_scratch(planned)
    assert len(left(run_dir)) == 4


@pytest.mark.slow
def test_a_real_runs_declared_scratch_is_found_in_its_working_directory(holdfast: Command, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    job = ("sh", "-c", "echo x > tmp/batch; echo ready; while :; do sleep 0.1; done")
    with live_run(holdfast, "--name", "scratchy", "--scratch", "tmp/**", job=job):
        assert holdfast("prune", "scratchy", "--yes").code == 64
        assert (tmp_path / "tmp/batch").exists()
        assert holdfast("stop", "--now", "scratchy").code == 0
        assert holdfast("prune", "scratchy", "--yes").code == 0
        assert not (tmp_path / "tmp/batch").exists()


def test_nothing_declared_is_said(holdfast: Command, isolated_environment: dict[str, str]) -> None:
    make_run(isolated_environment["HOLDFAST_RUNS"], RUN, ended())
    done = holdfast("prune", "digits")
    assert done.code == 0
    assert "declares no scratch" in done.err
