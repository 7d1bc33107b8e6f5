"""A run of a shared job lives as long as its claim: it beats, it tells its end, and it ends when it is taken over."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.plan.claim import read_claim, write_claim
from holdfast.host.files import claims
from holdfast.model import wire
from holdfast.model.job import OrphanPolicy
from holdfast.model.run import Outcome
from tests.agent.driving import job
from tests.waiting import wait_until

if TYPE_CHECKING:
    from holdfast.host.files.claims import Claim, ClaimView
    from tests.agent.driving import Drive, Driven

pytestmark = [pytest.mark.process, pytest.mark.requirement("QUEUE-12")]

EXPIRY_S = 12.0
"""A supervisor that a busy machine keeps from beating for six tenths of it gives the claim up."""


def start_claimed(drive: Drive, tmp_path: Path, *words: str) -> tuple[Driven, Claim]:
    """A run whose job this box has claimed."""
    directory = claims.open_directory(str(tmp_path / "claims"), expiry_s=EXPIRY_S)
    claim = claims.make_claim(directory.job_directory("job"), 0)
    assert claim is not None
    run = drive.create(*job(*words), on_supervisor_death=OrphanPolicy.KILL)
    write_claim(run.run_dir, claim, directory.expiry_s)
    run.start()
    return run, claim


def test_a_claim_is_shown_to_be_alive_while_the_run_lives(drive: Drive, tmp_path: Path) -> None:
    run, claim = start_claimed(drive, tmp_path, "stay")
    run.ready()

    def look() -> ClaimView:
        return claims.look_at_claim(claim.directory)

    first = wait_until(lambda: look().beat, what="the first beat")
    wait_until(lambda: look().beat != first, what="another beat")
    run.ask()
    assert run.ended().outcome is Outcome.STOPPED
    seen = look()
    assert seen.end is not None
    assert (seen.end.outcome, seen.end.run_dir, seen.claimable) == ("stopped", run.run_dir, False)


@pytest.mark.parametrize(("code", "outcome"), [("0", "succeeded"), ("3", "failed")])
def test_the_other_boxes_are_told_how_it_ended(drive: Drive, tmp_path: Path, code: str, outcome: str) -> None:
    run, claim = start_claimed(drive, tmp_path, "exit_with", code)
    run.ended()
    end = claims.look_at_claim(claim.directory).end
    assert end is not None
    assert (end.outcome, end.exit_code) == (outcome, int(code))


def test_a_run_whose_job_was_taken_over_is_ended_at_once_and_says_nothing_about_the_job(
    drive: Drive, tmp_path: Path
) -> None:
    run, claim = start_claimed(drive, tmp_path, "ignore_term")
    run.ready()
    taken = claims.make_claim(claim.directory, claim.number)
    assert taken is not None
    ended = run.ended()
    assert ended.outcome is Outcome.PREEMPTED
    assert "another box has taken it over" in str(ended.request)
    assert claims.look_at_claim(claim.directory).end is None
    run.assert_gone()


def test_a_run_that_cannot_reach_its_claim_ends_before_it_expires(drive: Drive, tmp_path: Path) -> None:
    run, claim = start_claimed(drive, tmp_path, "ignore_term")
    run.ready()
    wait_until(lambda: claims.look_at_claim(claim.directory).beat, what="the first beat")
    # What makes every look fail, also for root: a directory where the claim's file was.
    path = Path(claim.path("claim"))
    path.rename(tmp_path / "aside")
    path.mkdir()
    ended = run.ended()
    assert ended.outcome is Outcome.PREEMPTED
    assert "could not be renewed" in str(ended.request)


def test_a_claim_file_that_cannot_be_read_is_a_claim_that_is_lost(drive: Drive) -> None:
    run = drive.create(*job("stay"))
    with open(f"{run.run_dir}/{wire.CLAIM}", "w", encoding="utf-8") as file:
        file.write("torn")
    with pytest.raises(wire.WireError):
        read_claim(run.run_dir)
    run.start()
    assert run.ended().outcome is not Outcome.SUCCEEDED


def test_a_run_without_a_claim_has_none_to_keep(drive: Drive) -> None:
    run = drive.create(*job("exit_with", "0"))
    assert read_claim(run.run_dir) is None
