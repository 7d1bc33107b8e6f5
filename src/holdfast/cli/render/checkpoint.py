"""What became of a request for a checkpoint, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import note

if TYPE_CHECKING:
    from holdfast.agent.control.checkpoints.request import CheckpointAnswer


def print_answer(answer: CheckpointAnswer) -> None:
    """Print the account."""
    run_id = answer.run_id
    if answer.condition is None:
        print(f"{run_id}: asked to save a checkpoint and go on")
        return
    waited = f"within {answer.waited_s:.0f} s"
    match answer.phase.value:
        case "saved":
            print(f"{run_id}: saved step {answer.step}: {answer.path}")
        case "ended":
            print(f"{run_id} ended before it saved: {answer.condition}: {answer.note}")
        case "refused":
            print(f"{run_id} was not asked: its job no longer runs ({answer.condition})")
        case "taken_up":
            print(f"{run_id} has taken the request up, and no newer checkpoint is durable {waited}")
            note(f"it may still be saving; see its output: holdfast logs {run_id}")
        case "passed_on":
            print(f"{run_id}: the job has not answered {waited}; does the script use holdfast.training?")
            note("the request stays: a job that looks for it at a later step still saves")
        case _:
            print(f"{run_id}: its supervisor has not passed the request on {waited}")
            note(f"see holdfast show {run_id}")
