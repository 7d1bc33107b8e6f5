"""A cell is done when everything about its run says so, read from the disk now."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.queueing.completion import judge, prove
from holdfast.core.completion import Standing
from holdfast.model import wire
from holdfast.model.queue import CellState
from holdfast.model.run import Outcome
from tests.agent.queueing.trees import RESULT, STARTED_S, Roster

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.model.queue import Cell

pytestmark = [pytest.mark.contract, pytest.mark.requirement("QUEUE-05", "QUEUE-16")]


@pytest.fixture
def roster(tmp_path: Path, isolated_environment: dict[str, str]) -> Roster:
    return Roster(tmp_path)


def where(cell: Cell) -> str:
    assert cell.run_dir is not None
    return cell.run_dir


def edit(path: str, change: Callable[[dict[str, object]], object]) -> None:
    """Change a record by hand."""
    record = json.loads(Path(path).read_text())
    change(record)
    Path(path).write_text(json.dumps(record))


def test_a_proven_cell_is_done(roster: Roster) -> None:
    cell = roster.add_run("a")
    assert judge(cell, where(cell), cell.sha256)[0] is CellState.DONE
    assert prove(cell, where(cell), deep=True).done


def test_a_cell_without_declared_results_rests_on_its_exit_record(roster: Roster) -> None:
    cell = roster.add_run("a", artifacts=())
    state, note = judge(cell, where(cell), cell.sha256)
    assert (state, "no artifacts declared" in note) == (CellState.DONE, True)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.SUCCEEDED])
def test_no_other_outcome_is_done(roster: Roster, outcome: Outcome) -> None:
    cell = roster.add_run("a", outcome=outcome)
    assert judge(cell, where(cell))[0] is CellState.FAILED


def test_a_result_that_went_is_not_done_any_more(roster: Roster) -> None:
    cell = roster.add_run("a")
    Path(where(cell), RESULT).unlink()
    assert prove(cell, where(cell)).standing is Standing.MISSING


def test_a_result_that_was_written_later_is_not_the_runs(roster: Roster) -> None:
    cell = roster.add_run("a")
    result = Path(where(cell), RESULT)
    os.utime(result, (STARTED_S + 500, STARTED_S + 500))
    assert "after the end" in prove(cell, where(cell)).why
    result.write_text("longer than it was" * 9)
    assert prove(cell, where(cell)).standing is Standing.UNVERIFIED


def test_a_result_from_before_the_start_is_another_runs(roster: Roster, tmp_path: Path) -> None:
    shared = tmp_path / "shared.json"
    cell = roster.add_run("a", artifacts=(str(shared),))
    assert prove(cell, where(cell)).done
    os.utime(shared, (STARTED_S - 500, STARTED_S - 500))
    found = prove(cell, where(cell))
    assert (found.standing, found.path) == (Standing.UNVERIFIED, str(shared))


def test_a_cut_result_is_seen_when_it_is_read(roster: Roster) -> None:
    cell = roster.add_run("a", content='{"loss": 0.1')
    assert prove(cell, where(cell)).done
    assert prove(cell, where(cell), deep=True).standing is Standing.FAILED


def test_every_match_of_a_pattern_is_looked_at(roster: Roster) -> None:
    cell = roster.add_run("a", artifacts=("artifacts/part-*",))
    assert prove(cell, where(cell)).done
    Path(where(cell), "artifacts/part-2").touch()
    assert prove(cell, where(cell)).standing is Standing.EMPTY


@pytest.mark.requirement("FAIL-16")
def test_another_configuration_is_not_this_cells(roster: Roster) -> None:
    cell = roster.add_run("a")
    state, note = judge(cell, where(cell), "f" * 64)
    assert (state, note.startswith("unverified: ")) == (CellState.FAILED, True)
    edit(f"{where(cell)}/{wire.RUN}", lambda record: record["job"].update(name="b"))  # type: ignore[attr-defined]
    assert "hash" in prove(cell, where(cell)).why


def test_the_run_of_another_cell_proves_nothing(roster: Roster) -> None:
    first, second = roster.add_run("a"), roster.add_run("b")
    assert prove(replace(first, run_id=None), where(second), expected_sha=second.sha256).standing is Standing.UNVERIFIED
    assert prove(first, where(second), expected_sha=second.sha256).standing is Standing.UNVERIFIED


@pytest.mark.parametrize("name", [wire.EXIT, wire.STATE, wire.POSTFLIGHT])
def test_what_cannot_be_read_is_never_done(roster: Roster, name: str) -> None:
    cell = roster.add_run("a")
    Path(where(cell), "attempts/1", name).write_text("{")
    assert prove(cell, where(cell)).standing is Standing.UNVERIFIED


def test_what_the_job_itself_left_torn_does_not_matter(roster: Roster) -> None:
    cell = roster.add_run("a")
    Path(where(cell), "attempts/1", wire.HEARTBEAT).write_text("{")
    assert prove(cell, where(cell)).done


@pytest.mark.parametrize(("level", "standing"), [("fail", Standing.FAILED), ("unknown", Standing.UNVERIFIED)])
def test_a_check_that_did_not_pass_speaks_against_it(roster: Roster, level: str, standing: Standing) -> None:
    cell = roster.add_run("a")
    finding = {"id": "data", "level": level, "subject": "data", "evidence": "was not to be read", "remedy": ""}
    Path(where(cell), "attempts/1", wire.POSTFLIGHT).write_bytes(wire.to_bytes({"findings": [finding]}))
    assert prove(cell, where(cell)).standing is standing


def test_a_success_that_something_speaks_against_is_unverified(roster: Roster) -> None:
    cell = roster.add_run("a")
    edit(f"{where(cell)}/attempts/1/{wire.EXIT}", lambda record: record.update(failure_class="suspicious_finish"))
    assert prove(cell, where(cell)).standing is Standing.UNVERIFIED


def test_a_run_that_is_not_there_is_missing(roster: Roster, tmp_path: Path) -> None:
    assert prove(roster.add("a"), str(tmp_path / "nowhere")).standing is Standing.MISSING


def test_an_attempt_that_was_never_begun_hides_nothing(roster: Roster) -> None:
    cell = roster.add_run("a")
    Path(where(cell), "attempts/2").mkdir()
    assert prove(cell, where(cell)).done
