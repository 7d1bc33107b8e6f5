"""``holdfast queue check``: the roster against the disk on the command line, and retrying what is proven no more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.queues import find, no_worker, say, states, worked

if TYPE_CHECKING:
    from tests.cli.conftest import Command

__all__ = ["no_worker", "worked"]

RESULT = "artifacts/result.json"


@pytest.mark.slow
@pytest.mark.cli
@pytest.mark.requirement("QUEUE-05", "QUEUE-06", "QUEUE-15")
@pytest.mark.usefixtures("worked")
def test_three_jobs_of_which_the_middle_one_fails(holdfast: Command, tmp_path: Path) -> None:
    script, mended = tmp_path / "job.sh", tmp_path / "mended"
    script.write_text(
        f'echo "{{}}" > "$HOLDFAST_ARTIFACT_DIR/result.json"\n[ "$1" != b ] || [ -e {mended} ] || exit 3\n'
    )
    for name in ("a", "b", "c"):
        job = ("--artifact", RESULT, "--", "sh", str(script), name)
        assert holdfast("submit", "--group", "night", "--name", name, *job).code == 0
    waited = holdfast("wait", "night")
    assert waited.code == 1, waited
    assert states() == {"night/a": "done", "night/b": "failed", "night/c": "done"}
    checked = holdfast("queue", "check", "night")
    assert checked.code == 1
    assert checked.out.splitlines()[0] == "3 jobs: 2 done, 1 failed"
    assert checked.out.splitlines()[-1] == "re-run what is missing:  holdfast queue retry night/b"
    gone = Path(str(find("night/a").run_dir), RESULT)
    gone.unlink()
    value = holdfast("queue", "check", "--json").json()
    assert value["command"] == "holdfast queue retry night/a night/b"
    assert {job["job"]: job["standing"] for job in value["jobs"]} == {
        "night/a": "missing",
        "night/b": "failed",
        "night/c": "done",
    }
    mended.touch()
    again = holdfast(*value["command"].split()[1:])
    assert again.code == 0, again
    assert holdfast("wait", "night").code == 0
    assert find("night/c").attempts == 1
    assert gone.exists()
    assert holdfast("queue", "check", "night", "--deep").code == 0


@pytest.mark.contract
@pytest.mark.usefixtures("no_worker")
def test_a_roster_that_has_not_run_is_not_complete() -> None:
    assert say("queue", "check").code == 1
    say("submit", "--group", "night", "--name", "a", "--", "true")
    said = say("queue", "check", "night")
    assert (said.code, "has not run" in said.out, "re-run" in said.out) == (1, True, False)
    assert say("queue", "check", "nihgt").code == 66


@pytest.mark.contract
@pytest.mark.usefixtures("no_worker")
def test_what_was_cancelled_is_told_from_what_is_missing() -> None:
    for name in ("a", "b"):
        say("submit", "--group", "night", "--name", name, "--", "true")
    say("queue", "cancel", "night/a")
    last = "re-run what was cancelled, if it is still wanted:  holdfast queue retry night/a"
    assert say("queue", "check", "night").out.splitlines()[-1] == last
    say("queue", "pause", "night/b")
    said = say("queue", "check", "night")
    assert said.out.splitlines()[-1] == "re-run what is missing:  holdfast queue retry night/a night/b"
    assert "cancelled, to be left out of that where it is not wanted any more: night/a" in said.err


@pytest.mark.contract
@pytest.mark.usefixtures("no_worker")
def test_a_pause_is_what_the_check_names_when_nothing_else_is_in_the_way() -> None:
    say("submit", "--group", "night", "--name", "a", "--", "true")
    say("queue", "pause", "night")
    assert say("queue", "check").out.splitlines()[-1] == "re-run what is missing:  holdfast queue resume night"
