"""``holdfast submit``: what is taken, what is refused, and that nothing is taken then."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.core.job.job_hash import hash_job
from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.queue import JobState
from holdfast.store.queue.queue import Queue
from tests.cli.queues import find, no_worker, put, say, states

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.contract

__all__ = ["no_worker"]


@pytest.fixture(autouse=True)
def _here(no_worker: str) -> None:
    """Every test is in a directory of its own, with a queue that nobody works off."""


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_one_command_is_a_job_named_after_it() -> None:
    said = say("submit", "--", "true")
    assert (said.code, said.out) == (0, "true\n")
    assert "holdfast wait true" in said.err
    assert states() == {"true": "queued"}


def test_a_name_that_was_not_chosen_is_made_unique() -> None:
    assert [say("submit", "--", "true").out for _ in range(3)] == ["true\n", "true-2\n", "true-3\n"]


def test_the_same_job_by_its_name_is_taken_once() -> None:
    first = say("submit", "--name", "a", "--", "true")
    again = say("submit", "--name", "a", "--", "true")
    assert (first.code, again.code) == (0, 0)
    assert "handed in before" in again.err
    assert states() == {"a": "queued"}


def test_a_name_of_another_configuration_is_refused() -> None:
    say("submit", "--name", "a", "--", "true")
    said = say("submit", "--name", "a", "--", "false")
    assert said.code == 64
    assert "a" in said.err
    assert states() == {"a": "queued"}


def test_what_is_wanted_is_stored(tmp_path: Path) -> None:
    say("submit", "--name", "first", "--", "true")
    write(tmp_path / "train.py", "print(1)\n")
    job = write(tmp_path / "job.yaml", "command: [python3, train.py]\nname: train\nexpected: 2h\nartifacts: [r.json]\n")
    said = say(
        *("submit", job, "--group", "night", "--priority", "7", "--after", "default/first", "--not-before", "+2h"),
        *("--max-parallel", "2", "--hold-after", "3", "--if-changed", "hold", "--json"),
    )
    assert said.code == 0, said
    assert [job["job"] for job in said.json()["jobs"]] == ["night/train"]
    stored_job = find("night/train")
    assert (stored_job.state, stored_job.priority, stored_job.expected_s, stored_job.open_needs) == (
        JobState.BLOCKED,
        7,
        7200.0,
        1,
    )
    assert stored_job.not_before is not None
    with Queue() as queue:
        stored, group = queue.submission_of(stored_job.id), queue.groups()["night"]
    assert (group.max_parallel, group.hold_after, stored.if_changed.value) == (2, 3, "hold")
    assert list(stored.files) == [f"{tmp_path}/train.py"]
    assert stored.cwd == str(tmp_path)
    spec = wire.decode(JobSpec, {**stored.base, **stored.jobs[0].change})
    assert hash_job(spec) == stored_job.sha256


@pytest.mark.requirement("QUEUE-20")
def test_the_queues_number_and_the_jobs_word_are_told_apart() -> None:
    say("submit", "--priority", "-3", "--priority", "normal", "--", "true")
    job = find("true")
    with Queue() as queue:
        base = queue.submission_of(job.id).base
    assert (job.priority, base["priority"]) == (-3, "normal")
    assert "high" in say("submit", "--priority", "high", "--", "true").err


def test_paused_hands_in_and_starts_nothing() -> None:
    said = say("submit", "--paused", "--group", "night", "--", "true")
    assert "resume night" in said.err
    with Queue() as queue:
        assert queue.groups()["night"].paused


def test_what_stays_as_it_was_of_jobs_handed_in_again_is_said() -> None:
    job = ("submit", "--name", "a", "--group", "night")
    say(*job, "--not-before", "+2h", "--", "true")
    said = say(*job, "--not-before", "+3h", "--max-parallel", "2", "--hold-after", "1", "--paused", "--", "true")
    assert said.code == 0, said
    for words in (
        "with a start that stays as it is: night/a; another one: holdfast queue edit night/a --not-before TIME",
        "what holds for the group stays: holdfast queue edit night/ --max-parallel 2 --hold-after 1",
        "the group is not paused: holdfast queue pause night",
    ):
        assert words in said.err
    said = say(*job, "--", "true")
    assert (said.code, "holdfast queue edit night/a --not-before now" in said.err) == (64, True), said
    say("queue", "edit", "night/a", "--not-before", "now")
    assert say(*job, "--", "true").err.count("night") == 3


def test_another_time_for_a_cancelled_job_is_led_through_retry() -> None:
    job = ("submit", "--name", "a", "--group", "night")
    say(*job, "--not-before", "+2h", "--", "true")
    say("queue", "cancel", "night/a")
    said = say(*job, "--not-before", "+3h", "--", "true")
    way = "holdfast queue retry night/a, then holdfast queue edit night/a --not-before TIME"
    assert (said.code, way in said.err) == (0, True), said
    assert say("queue", "retry", "night/a").code == 0
    assert say("queue", "edit", "night/a", "--not-before", "+3h").code == 0


def test_lines_are_jobs_and_only_new_ones_are_added(tmp_path: Path) -> None:
    lines = write(tmp_path / "night.txt", "true a # first\r\n\nname=mine true b\r\n")
    first = say("submit", "--lines", lines)
    assert first.out == "2 jobs in group night\n"
    write(tmp_path / "night.txt", "name=mine true b\ntrue c\ntrue a")
    again = say("submit", "--lines", lines)
    assert again.out == "3 jobs in group night (2 of them handed in before)\n"
    assert len(states()) == 3
    assert "night/mine" in states()


def test_a_line_that_cannot_work_is_named_by_its_file_and_number(tmp_path: Path) -> None:
    lines = write(tmp_path / "a.txt", "true\n\nnosuchprogram --lr 1\nnosuchprogram --lr 2\nsh gone.sh\n")
    for more in ((), ("--dry-run",)):
        said = say("submit", "--lines", lines, *more)
        assert said.code == 64, said
        first, second, _ = said.err.splitlines()
        assert first.startswith(f"holdfast: {lines}:3: command nosuchprogram: is in none of PATH="), said
        assert second.startswith(f"{lines}:5: script "), said


def test_lines_leave_no_room_for_another_command(tmp_path: Path) -> None:
    lines = write(tmp_path / "a.txt", "true\n")
    said = say("submit", "--lines", lines, "--", "true")
    assert (said.code, states()) == (64, {})
    assert "leave one out" in said.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--", "no-such-program"), 64, "no-such-program"),
        (("--", "python3", "gone.py"), 64, "gone.py: does not exist"),
        (("--workdir", "/nowhere", "--", "true"), 64, "/nowhere: does not exist"),
        (("--gpus", "9", "--", "true"), 64, "(ask for what this box has: see `holdfast gpus`)"),
        (("--after", "nothing", "--", "true"), 64, "nothing"),
        (("--after", "me", "--name", "me", "--", "true"), 64, "me"),
        (("--not-before", "soon", "--", "true"), 64, "22:00"),
        (("--group", "a b", "--", "true"), 64, "a-b"),
        (("--env", "API_TOKEN=abcdefgh12345678", "--", "true"), 64, "secret"),
        (("--", "true", "--password=hunter2hunter2"), 64, "secret"),
        ((), 64, "no job"),
        (("gone.yaml",), 65, "gone.yaml"),
        (("--lines", "gone.txt"), 65, "gone.txt"),
    ],
)
def test_what_cannot_work_is_refused_and_not_taken(arguments: tuple[str, ...], code: int, words: str) -> None:
    said = say("submit", *arguments)
    assert (said.code, said.out) == (code, ""), said
    assert words in said.err
    assert states() == {}


def test_more_memory_than_any_card_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "2x80GB")
    said = say("submit", "--gpus", "1", "--min-free", "200GB", "--", "true")
    assert said.code == 64, said
    assert "(ask for what this box has: see `holdfast gpus`)" in said.err
    assert say("submit", "--gpus", "3", "--", "true").code == 64
    assert say("submit", "--gpus", "2", "--", "true").code == 0


def test_two_lines_that_write_to_one_place_are_refused(tmp_path: Path) -> None:
    lines = write(tmp_path / "a.txt", "echo 1 --output-dir out\necho 2 --output-dir out\n")
    said = say("submit", "--lines", lines)
    assert (said.code, states()) == (64, {})
    assert f"{tmp_path}/out" in said.err
    write(tmp_path / "a.txt", "echo 1 --output-dir out/{job}\necho 2 --output-dir out/{job}\n")
    assert say("submit", "--lines", lines).code == 0


def test_a_job_does_not_write_where_an_open_one_writes(tmp_path: Path) -> None:
    assert say("submit", "--", "echo", "--output-dir", "out").code == 0
    said = say("submit", "--", "echo", "--output-dir", "out")
    assert (said.code, states()) == (64, {"echo": "queued"})
    assert f"{tmp_path}/out" in said.err
    assert "--after default/echo" in said.err
    assert say("submit", "--after", "echo", "--", "echo", "--output-dir", "out").out == "echo-2\n"
    assert say("submit", "--after", "echo-2", "--", "echo", "--output-dir", "out").out == "echo-3\n"
    assert say("submit", "--shared", "out", "--", "echo", "--output-dir", "out").out == "echo-4\n"
    assert say("submit", "--", "echo", "--output-dir", "elsewhere").code == 0


def test_a_dry_run_allows_what_handing_in_allows(tmp_path: Path) -> None:
    lines = write(tmp_path / "a.txt", "echo --output-dir out\nprintf --output-dir out\n")
    assert say("submit", "--dry-run", "--lines", lines).code == 64
    assert say("submit", "--dry-run", "--shared", "out", "--lines", lines).code == 0


def test_dry_run_takes_nothing(tmp_path: Path) -> None:
    lines = write(tmp_path / "a.txt", "true 1\ntrue 2\n")
    said = say("submit", "--dry-run", "--not-before", "+1h", "--lines", lines)
    assert said.code == 0
    assert "nothing was handed in" in said.out
    assert "not before" in said.out
    assert say("submit", "--dry-run", "--json", "--lines", lines).json()["jobs"][1]["command"] == "true 2"
    assert not os.path.exists(f"{os.environ['XDG_STATE_HOME']}/holdfast/queue")


def test_a_need_that_failed_is_said_at_once() -> None:
    say("submit", "--name", "a", "--", "true")
    put("a", JobState.CLAIMED, run_id="20261120-104501-a-3fa2")
    put("a", JobState.RUNNING)
    put("a", JobState.FAILED, exit_code=1, outcome="failed")
    said = say("submit", "--after", "a", "--", "true")
    assert said.code == 0
    assert states()["true"] == "blocked"


def test_dry_run_names_only_needs_that_are_open_and_refuses_those_that_are_not_there() -> None:
    assert say("submit", "--name", "a", "--", "true").code == 0
    said = say("submit", "--dry-run", "--name", "b", "--after", "a", "--", "true")
    assert (said.code, "needs a" in said.out) == (0, True)
    assert say("submit", "--dry-run", "--name", "b", "--after", "nosuch", "--", "true").code == 64


def test_a_name_for_a_file_of_commands_is_refused_and_not_dropped(tmp_path: Path) -> None:
    done = say("submit", "--lines", write(tmp_path / "f.txt", "true\n"), "--name", "g")
    assert (done.code, "--group NAME" in done.err) == (64, True), done
    assert states() == {}
