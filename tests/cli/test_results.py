"""``holdfast results``: copies are repeated as copies, and what was gathered is counted."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.control.run_lock import hold_run_lock
from holdfast.agent.view.find import find_run
from tests.cli.queues import find, no_worker, say, states, worked

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

__all__ = ["no_worker", "worked"]

WRITE = 'echo "$HOLDFAST_RUN_ID" > "$HOLDFAST_ARTIFACT_DIR/answer"'


def read_tree(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()}


@pytest.mark.slow
@pytest.mark.cli
@pytest.mark.requirement("POST-07", "POST-11", "FAIL-10", "VRFY-14", "MON-12")
@pytest.mark.usefixtures("worked")
def test_a_failed_copy_is_repeated_as_a_copy_and_what_waits_goes_on(holdfast: Command, tmp_path: Path) -> None:
    mount, to = tmp_path / "mount", tmp_path / "mount" / "lasting"
    mount.mkdir()
    script = tmp_path / "job.sh"
    script.write_text(f"echo x >> {tmp_path}/trained\n{WRITE}\nrmdir {mount}\n")
    copied = ("--results-to", str(to), "--results-tries", "1")
    assert holdfast("submit", "--group", "night", "--name", "up", *copied, "--", "sh", str(script)).code == 0
    after = ("--after", "night/up", "--", "sh", "-c", f"{WRITE}; touch {tmp_path}/after")
    assert holdfast("submit", "--group", "night", "--name", "down", *after).code == 0
    assert holdfast("wait", "night").code == 1
    assert states() == {"night/up": "failed", "night/down": "blocked"}
    run_id = str(find("night/up").run_id)
    assert "training succeeded" in holdfast("show", run_id).out
    assert holdfast("run", "--name", "other", "--results-to", str(to), "--", "true").code == 78

    again = holdfast("queue", "retry", "night/up")
    assert (again.code, f"holdfast results copy {run_id}" in again.err) == (1, True), again
    failed = holdfast("results", "copy", run_id)
    assert (failed.code, "not copied" in failed.err) == (73, True), failed
    gathered = holdfast("results", "collect", "night/", "--to", str(tmp_path / "all"), "--json").json()
    assert (gathered["exit_code"], gathered["complete"]) == (73, 0)

    mount.mkdir()
    done = holdfast("results", "copy", run_id)
    assert done.code == 0, done
    assert "counts as succeeded now" in done.err
    assert holdfast("wait", "night").code == 0
    assert (tmp_path / "after").exists()
    assert (tmp_path / "trained").read_text() == "x\n", "nothing was trained again"
    ls = holdfast("ls", "--all", "--json").json()
    assert {row["condition"] for row in ls["runs"] if row["run_id"] == run_id} == {"succeeded"}

    first = holdfast("results", "collect", "night/", "--to", str(tmp_path / "all"))
    assert (first.code, "2 of 2 complete" in first.out) == (0, True), first
    there = read_tree(tmp_path / "all")
    assert holdfast("results", "collect", "night/", "--to", str(tmp_path / "all")).code == 0
    assert read_tree(tmp_path / "all") == there
    assert there["night/up/artifacts/answer"].decode().strip() == run_id


@pytest.mark.cli
@pytest.mark.requirement("VRFY-14")
def test_what_is_half_is_listed_and_what_is_gone_still_counts(holdfast: Command, tmp_path: Path) -> None:
    assert holdfast("run", "--name", "good", "--", "sh", "-c", WRITE).code == 0
    assert holdfast("run", "--name", "half", "--", "sh", "-c", f"{WRITE}; exit 3").code == 3
    to = tmp_path / "all"
    found = holdfast("results", "collect", "good", "half", "--to", str(to), "--json")
    assert found.code == 1
    runs = {one["name"].split("-")[2]: one for one in found.json()["runs"]}
    assert (runs["good"]["status"], runs["good"]["landed"]) == ("complete", 1)
    half = runs["half"]
    assert (half["status"], half["landed"], half["expected"]) == ("incomplete", 0, 1)
    assert half["why"].startswith("failed: ")
    table = holdfast("results", "collect", "half", "--to", str(tmp_path / "half"))
    assert (table.code, "nothing landed" in table.out) == (73, True), table
    answer = to / runs["good"]["name"] / "artifacts" / "answer"
    answer.write_text("other\n")
    mended = holdfast("results", "collect", "good", "--to", str(to))
    words = f"mended: {runs['good']['name']}: artifacts/answer was not any more what had been proven, and came again"
    assert (mended.code, words in mended.out) == (0, True), mended
    assert answer.read_text().strip() == runs["good"]["run_id"], "a copy that went bad is mended"
    with hold_run_lock(find_run("good").run_dir, what="test"):
        [one] = holdfast("results", "collect", "good", "--to", str(to), "--json").json()["runs"]
    assert (one["status"], "restarting" in one["why"]) == ("incomplete", True), "another may begin it again"


@pytest.mark.cli
def test_bad_input_names_what_to_do(isolated_environment: dict[str, str], tmp_path: Path) -> None:
    assert isolated_environment
    assert say("results", "copy", "nowhere").code == 66
    assert say("results", "collect", "--to", str(tmp_path)).code == 64
    assert say("results", "copy").code == 64
    job = tmp_path / "job.yaml"
    job.write_text("command: [date]\nresults: {to: $NOWHERE/x}\n")
    refused = say("run", str(job))
    assert (refused.code, "$NOWHERE is not set" in refused.err) == (65, True), refused
    job.write_text("command: [date]\nresults: {paths: [../x], to: /tmp}\n")
    assert say("run", str(job)).code == 65
    job.write_text("command: [date]\nresults: {must: true}\n")
    assert "must" in say("run", str(job)).err
    os.environ["LASTING"] = str(tmp_path / "lasting")
    try:
        job.write_text("name: t\ncommand: [date]\nresults: {to: $LASTING/x}\n")
        checked = say("run", str(job))
    finally:
        del os.environ["LASTING"]
    assert (checked.code, f"{tmp_path}/lasting is not there" in checked.err) == (78, True), checked
