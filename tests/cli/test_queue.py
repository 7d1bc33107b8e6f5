"""``holdfast queue``: what it shows, why jobs wait, and what orders do."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from holdfast.agent.queue.change.clear import clear, plan_clear
from holdfast.agent.queue.change.restarted import notify_queue
from holdfast.agent.view.find import find_run
from holdfast.agent.view.words import pick_words
from holdfast.model import wire
from holdfast.model.errors import NoSuchRun, UsageError
from holdfast.model.queue import JobRef, JobState
from holdfast.model.run import Outcome
from holdfast.store.index import IndexRow
from holdfast.store.queue.queue import Queue, queue_directory
from tests.cli.queues import find, no_worker, put, say, states
from tests.rundirs import ended, make_run

pytestmark = pytest.mark.contract

__all__ = ["no_worker"]
RUN = "20261120-104501-{}-3fa2"


@pytest.fixture(autouse=True)
def _here(no_worker: str) -> None:
    """Every test is in a directory of its own, with a queue that nobody works off."""


def submit(*names: str, options: tuple[str, ...] = ()) -> None:
    for name in names:
        group, _, bare = name.rpartition("/")
        said = say("submit", "--name", bare, *(("--group", group) if group else ()), *options, "--", "true")
        assert said.code == 0, said


def run(name: str) -> None:
    put(name, JobState.CLAIMED, run_id=RUN.format(name.rpartition("/")[2]))
    put(name, JobState.RUNNING, started_at=0.0)


def fail(name: str) -> None:
    run(name)
    put(name, JobState.FAILED, outcome="failed", exit_code=1)


def waiting() -> list[str]:
    """The labels of queued jobs in their order."""
    with Queue() as queue:
        return [job.label for job in queue.jobs(states=(JobState.QUEUED,))]


def test_an_empty_queue_says_how_to_begin() -> None:
    said = say("queue")
    assert (said.code, said.out) == (0, "")
    assert "holdfast submit" in said.err


@pytest.mark.parametrize("verb", ["stop", "logs", "show", "restart", "attach", "rm", "stop/"])
def test_a_group_in_place_of_a_run_gets_the_commands_of_all_its_jobs(verb: str) -> None:
    submit("rates/a")
    said = say(verb.rstrip("/"), "rates/" if verb.endswith("/") else "rates")
    assert said.code == 66
    for way in ("sweep show rates", "logs rates/", "queue cancel rates/ --running"):
        assert f"holdfast {way}" in said.err


def test_the_list_has_counts_and_the_first_reason() -> None:
    submit("a", "b")
    submit("night/c", options=("--after", "default/a"))
    fail("b")
    said = say("queue")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].split()[:6] == ["GROUP", "ACTIVE", "QUEUED", "BLOCKED", "HELD", "DONE"]
    assert any(line.split()[:3] == ["default", "-", "1"] for line in lines)
    assert any(line.startswith("night/c") and "needs a, which is queued" in line for line in lines)
    assert "no worker is there" in said.err
    with open(f"{queue_directory()}/worker.log", "w", encoding="utf-8"):
        assert "a worker is just being started" in say("queue").err


def test_a_job_behind_a_blocked_one_says_what_failed_and_misses_no_worker() -> None:
    submit("prep")
    submit("train", options=("--after", "default/prep"))
    submit("eval", options=("--after", "default/train"))
    before = say("queue", "show", "eval")
    assert "no worker is there" in before.out + before.err
    fail("prep")
    said = say("queue", "show", "eval")
    shown = said.out + said.err
    assert "needs train, which is blocked" in shown
    assert "needs prep, which is failed" in shown
    assert "holdfast queue retry prep" in shown
    assert "no worker is there" not in shown
    for name in ("train", "eval"):
        again = say("queue", "retry", name)
        assert again.code == 1
        assert "needs prep, which is failed" in again.err
        assert "go on: holdfast queue retry prep" in again.err


def test_what_failed_is_named_however_many_jobs_are_blocked_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    submit("prep")
    submit("a", "b", "c", options=("--after", "default/prep"))
    submit("collect", options=("--after", "default/a,default/b,default/c"))
    assert say("queue", "cancel", "--yes", "prep").code == 0
    monkeypatch.setattr("holdfast.agent.queue.view.reasons.MOST_BEHIND", 1)
    shown = say("queue", "show", "collect").out
    assert "needs prep, which is cancelled" in shown
    # Without prep its own needs would go on, not itself.
    assert "does not pass by itself: holdfast queue retry prep\n" in shown


def test_a_worker_is_missed_where_another_box_has_what_a_job_needs() -> None:
    submit("prep")
    submit("train", options=("--after", "default/prep"))
    put("prep", JobState.ELSEWHERE)
    said = say("queue", "show", "train")
    assert "no worker is there" in said.out + said.err


def test_states_select_and_wrong_ones_are_refused() -> None:
    submit("a", "b")
    fail("b")
    said = say("queue", "ls", "--state", "failed")
    assert "b  " in said.out
    assert "\na " not in said.out
    assert say("queue", "ls", "--state", "waiting", "--json").json()["jobs"][0]["label"] == "a"
    wrong = say("queue", "ls", "--state", "fialed")
    assert (wrong.code, "did you mean failed?" in wrong.err) == (64, True)


@pytest.mark.slow
def test_all_shows_every_job() -> None:
    submit(*(f"c{number}" for number in range(22)))
    short = say("queue", "ls")
    assert "2 more wait" in short.err
    assert "c21" not in short.out
    assert "c21" in say("queue", "ls", "--all").out


def test_one_group_is_shown_alone_and_near_names_are_proposed() -> None:
    submit("a", "night/b")
    assert "a  " not in say("queue", "ls", "night").out.replace("night/b", "")
    said = say("queue", "ls", "nihgt")
    assert (said.code, "did you mean night?" in said.err) == (66, True)


@pytest.mark.requirement("QUEUE-20")
def test_a_pause_is_said_loudly_and_resumed() -> None:
    submit("night/a")
    assert say("queue", "pause").code == 0
    said = say("queue")
    assert "PAUSED" in said.err
    assert "holdfast queue resume" in said.err
    assert "the whole queue is paused" in said.out
    assert say("queue", "resume").code == 0
    assert "PAUSED" not in say("queue").err
    say("queue", "pause", "night/")
    assert "group night is PAUSED; go on: holdfast queue resume night" in say("queue").err
    say("queue", "resume", "night")
    assert "PAUSED" not in say("queue").err


@pytest.mark.requirement("QUEUE-20")
def test_one_job_is_held_and_goes_on_by_its_name_alone() -> None:
    submit("a", "b", "night/c")
    said = say("queue", "pause", "a", "night/c", "--reason", "the data\nis not there yet")
    assert (said.code, said.out) == (0, "held: a, night/c\n")
    assert "go on: holdfast queue resume a night/c" in said.err
    assert "held by" in (shown := say("queue").out)
    assert ("the data is not there yet" in shown, waiting()) == (True, ["b"])
    assert "held already" in say("queue", "pause", "a").err
    # Neither the whole queue nor a group takes it along.
    say("queue", "pause")
    assert "still held: a, night/c; go on: holdfast queue resume a night/c" in say("queue", "resume").err
    assert "still held: night/c" in say("queue", "resume", "night/").err
    assert "left alone: night/c (held)" in say("queue", "retry", "night/").err
    assert "left alone: night/c (held)" in say("sweep", "retry", "night", "--all").err
    assert "left alone: a, b (held, queued)" in say("queue", "retry", "default").err
    assert waiting() == ["b"]
    assert say("queue", "resume", "a", "night/c").code == 0
    assert waiting() == ["a", "b", "night/c"]


def test_what_runs_or_is_not_there_is_not_held() -> None:
    submit("a", "b", "night/c")
    run("a")
    said = say("queue", "pause", "a")
    assert (said.code, "queue pause: a is running" in said.err) == (64, True)
    assert "holdfast queue cancel a --running" in said.err, said
    assert "left alone: a is running" in say("queue", "pause", "a", "b").err
    assert say("queue", "pause", "nosuch").code == 66
    assert say("queue", "pause", "night", "night/").out == "group night is paused\n"
    say("queue", "resume", "night")
    assert (say("queue", "pause", "night", "--reason", "x").code, waiting()) == (64, ["night/c"])


@pytest.mark.requirement("QUEUE-20")
def test_drain_says_what_is_still_at_work() -> None:
    submit("a", "b")
    run("a")
    said = say("queue", "drain")
    assert "1 job still at work: a" in said.err
    assert "is being DRAINED" in say("queue").err
    put("a", JobState.FAILED, outcome="failed", exit_code=1)
    assert "the queue is DRAINED" in say("queue").err


@pytest.mark.requirement("QUEUE-20")
def test_one_waiting_job_is_cancelled_without_a_question_and_comes_back() -> None:
    submit("a", "b")
    said = say("queue", "cancel", "a")
    assert (said.code, said.out) == (0, "cancelled: a\n")
    assert states() == {"a": "cancelled", "b": "queued"}
    assert say("queue", "retry", "a").out == "queued again: a\n"
    assert states()["a"] == "queued"


def test_several_jobs_are_cancelled_only_after_a_word() -> None:
    submit("g/a", "g/b")
    said = say("queue", "cancel", "g/")
    assert (said.code, "--yes" in said.err) == (64, True)
    assert set(states().values()) == {"queued"}
    assert say("queue", "cancel", "g/", "--yes").code == 0
    assert set(states().values()) == {"cancelled"}


def test_a_job_at_work_is_left_alone_without_running() -> None:
    submit("a")
    run("a")
    said = say("queue", "cancel", "a")
    assert said.code == 1
    assert "--running (and --yes where there is no terminal)" in said.err
    assert states() == {"a": "running"}


def test_a_job_that_still_stops_is_not_called_cancelled_and_comes_back_when_it_has() -> None:
    submit("g/a", "g/b", "g/c")
    run("g/a")
    refused = say("queue", "cancel", "g/a", "--running")
    assert "nothing was cancelled, 1 job would be; it runs and would be stopped: there is" in refused.err
    assert "; 1 of them runs and would be stopped" in say("queue", "cancel", "g/", "--running").err
    said = say("queue", "cancel", "g/a", "--running", "--yes")
    assert said.out == "asked to stop: g/a\n"
    assert "take it back once it has ended (holdfast wait g/a): holdfast queue retry g/a" in said.err
    early = say("queue", "retry", "g/a")
    assert (early.code, "queued again once it has ended: holdfast wait g/a" in early.err) == (1, True), early
    assert say("queue", "cancel", "g/", "--running", "--yes").out == "cancelled or asked to stop: g/b, g/c, g/a\n"


@pytest.mark.requirement("QUEUE-20")
def test_jobs_move_and_priorities_go_first() -> None:
    submit("a", "b", "c")
    say("queue", "move", "c", "--first")
    assert waiting() == ["c", "a", "b"]
    say("queue", "move", "c", "--before", "b")
    assert waiting() == ["a", "c", "b"]
    say("queue", "move", "a", "--last")
    assert waiting() == ["c", "b", "a"]
    said = say("queue", "edit", "a", "--priority", "5")
    assert (said.code, "priority 5" in said.out) == (0, True)
    assert waiting() == ["a", "c", "b"]
    assert say("queue", "move", "a").code == 64
    assert say("queue", "move", "a", "--first", "--last").code == 64


def test_what_does_not_wait_is_neither_moved_nor_given_a_time() -> None:
    submit("w", "r", "f", "d")
    run("r")
    fail("f")
    run("d")
    put("d", JobState.PRODUCED)
    put("d", JobState.DONE)
    ways = {"r": "holdfast restart r", "f": "holdfast queue retry f", "d": "holdfast run --like d"}
    for name, way in ways.items():
        for words in (("edit", name, "--not-before", "+1h"), ("move", name, "--first"), ("move", name, "--last")):
            said = say("queue", *words)
            assert (said.code, said.out, way in said.err) == (64, "", True), said
        assert (find(name).not_before, find(name).place) == (None, float(find(name).id))
        said = say("queue", "move", "w", "--before", name)
        assert (said.code, said.out, f"move: {name} is " in said.err) == (64, "", True), said
    assert "it counts as done; holdfast run --like d runs it once more" in say("queue", "accept", "d").err
    assert "it has not ended: holdfast wait r" in say("queue", "accept", "r").err
    assert say("queue", "edit", "d", "--priority", "3").code == 64
    assert find("d").priority == 0


def test_a_priority_counts_when_what_is_at_work_is_begun_again() -> None:
    submit("r", "g/a", "g/b")
    run("r")
    said = say("queue", "edit", "r", "--priority", "3")
    assert (said.code, find("r").priority) == (0, 3)
    assert "at work: r; it counts when the queue begins that again" in said.err
    run("g/a")
    said = say("queue", "edit", "g/", "--not-before", "+1h")
    assert (said.code, "left alone: g/a (running)" in said.err) == (0, True), said
    assert (find("g/a").not_before, find("g/b").not_before is None) == (None, False)
    assert "left alone: g/a (running)" in say("queue", "move", "g/", "--first").err
    fail("g/b")
    assert say("queue", "edit", "g/", "--not-before", "+1h").code == 1


def test_what_changed_and_would_be_held_again_does_not_go_on_without_a_word(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("true\n")
    said = say("submit", "--name", "a", "--if-changed", "hold", "--", "sh", "train.sh")
    assert said.code == 0, said
    put("a", JobState.HELD, note="changed since submit: train.sh")
    script.write_text("false\n")
    said = say("queue", "resume", "a")
    assert (said.code, states()) == (64, {"a": "held"}), said
    assert "a would be held again: changed since it was handed in: train.sh" in said.err
    assert "go on: holdfast queue resume a --accept-changes" in said.err
    said = say("queue", "resume")
    assert (said.code, "a would be held again" in said.err) == (0, True), "with the others it is said beside"
    put("a", JobState.HELD)
    assert say("queue", "resume", "a", "--accept-changes").code == 0
    assert states() == {"a": "queued"}
    put("a", JobState.HELD)
    assert say("queue", "resume", "a").code == 0, "once accepted it stays so"


def test_times_and_limits_are_edited() -> None:
    submit("g/a")
    assert say("queue", "edit", "g/a", "--not-before", "+1h").code == 0
    assert find("g/a").not_before is not None
    assert "not before" in say("queue", "show", "g/a").out
    assert say("queue", "edit", "g/a", "--not-before", "now").code == 0
    assert find("g/a").not_before is None
    assert say("queue", "edit", "g/", "--max-parallel", "2", "--hold-after", "3").code == 0
    assert say("queue", "set", "--cpu-slots", "3").code == 0
    with Queue() as queue:
        group = queue.groups()["g"]
        assert (group.max_parallel, group.hold_after, queue.settings().cpu_slots) == (2, 3, 3)
    assert say("queue", "set", "--cpu-slots", "auto").code == 0
    with Queue() as queue:
        assert queue.settings().cpu_slots is None
    assert say("queue", "set", "--cpu-slots", "many").code == 64
    assert say("queue", "edit", "g/a", "--max-parallel", "2").code == 64
    assert say("queue", "edit", "g/a").code == 64


def test_failed_jobs_are_tried_again_and_done_ones_are_not() -> None:
    submit("a", "b", "c")
    fail("a")
    run("b")
    put("b", JobState.PRODUCED)
    put("b", JobState.DONE)
    said = say("queue", "retry", "default/")
    assert said.out == "queued again: a\n"
    assert "left alone: b, c (done, queued)" in said.err
    assert states() == {"a": "queued", "b": "done", "c": "queued"}
    assert say("queue", "retry", "c").code == 1
    assert say("queue", "retry").code == 64
    assert "nothing to try again" in say("queue", "retry", "--failed").out


def test_a_job_where_a_group_belongs_is_told_what_changes_a_job() -> None:
    submit("g/a")
    said = say("queue", "clear", "g/a")
    assert (said.code, "there is no group 'g/a'" in said.err) == (66, True)
    assert "holdfast queue edit g/a --not-before 22:00" in said.err
    assert say("queue", "edit", "g/a", "--not-before", "22:00").code == 0


def test_closed_groups_leave_the_list_and_open_ones_stay() -> None:
    submit("g/a", "h/b")
    say("queue", "cancel", "g/a")
    said = say("queue", "clear", "--yes")
    assert said.out == "taken out of the list: g\n"
    assert states() == {"h/b": "queued"}
    assert say("queue", "clear").out.startswith("nothing to clear")
    # The environment is that of both; with the last of them it goes.
    assert len(os.listdir(f"{queue_directory()}/environments")) == 1
    say("queue", "cancel", "h/b")
    say("queue", "clear", "-y")
    assert os.listdir(f"{queue_directory()}/environments") == []


def test_what_is_cleared_is_asked_for_and_named_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    made = say("sweep", "--name", "rates", "--grid", "lr=1,2", "--", "python3", "train.py")
    assert made.code == 0, made
    submit("a", "b")
    say("queue", "cancel", "rates/", "a", "--yes")
    refused = say("queue", "clear")
    assert (refused.code, "nothing was taken out: there is no terminal" in refused.err) == (64, True), refused
    shown = say("queue", "clear", "--dry-run")
    assert shown.code == 0
    assert shown.out == "would be taken out of the list: rates; and of others: a\n"
    assert "the table of sweep rates would go" in shown.err
    assert len(states()) == 4
    said = say("queue", "clear", "default", "--yes")
    assert said.out == "taken out of the list: a\n"
    assert "the table of sweep rates is gone" in say("queue", "clear", "--yes").err
    assert states() == {"b": "queued"}


def test_what_loses_by_runs_that_are_removed_says_so_before_and_after(isolated_environment: dict[str, str]) -> None:
    root, ids = isolated_environment["HOLDFAST_RUNS"], [RUN.format("a"), RUN.format("b")]
    submit("g/a", "g/b")
    with Queue() as queue:
        refs = {job.name: JobRef("q", job.key, "g", job.name) for job in queue.jobs()}
    for name, run_id in zip("ab", ids, strict=True):
        path = Path(make_run(root, run_id, ended()), wire.RUN)
        path.write_bytes(wire.to_bytes({**json.loads(path.read_bytes()), "queued": wire.encode(refs[name])}))
        put(f"g/{name}", JobState.CLAIMED, run_id=run_id, runs_root=root)
        put(f"g/{name}", JobState.RUNNING, started_at=0.0)
        put(f"g/{name}", JobState.PRODUCED, outcome="succeeded", exit_code=0)
        put(f"g/{name}", JobState.DONE, outcome="succeeded", exit_code=0)
    before = say("rm", "--dry-run", *ids)
    assert "2 of them are jobs of group g: its table (holdfast sweep show) loses their numbers" in before.err, before
    far = Path(make_run(root, RUN.format("c"), ended()), wire.RUN)
    record = json.loads(far.read_bytes())
    far.write_bytes(wire.to_bytes({**record, "job": {**record["job"], "env": {"HOLDFAST_GROUP": "far"}}}))
    assert "1 of them is a job of group far" in say("rm", "--dry-run", RUN.format("c")).err, "of a scheduler's sweep"
    assert say("rm", "--dry-run", "g/").err == before.err, "a group is its ended runs"
    gone = say("rm", "--yes", ids[0])
    assert (gone.code, "to keep them, before" in gone.err) == (0, False), "nobody can follow it any more"
    assert "1 of them was a job of group g: its table (holdfast sweep show) has lost their numbers" in gone.err
    assert "the run of a was removed, and the numbers with it" in say("sweep", "show", "g").err
    line = say("sweep", "show", "g", "--json").json()["jobs"][0]
    assert (line["final"], "its run was removed" in line["problems"][0]) == (False, True)
    assert "g/: the runs of 1 job were removed" in say("logs", "g/").err
    assert "the run of 1 job that was done is not there any more (g/a)" in say("wait", "g/").err
    assert say("rm", "--yes", "g/").code == 0
    assert not os.path.lexists(f"{root}/{ids[1]}")
    said = say("submit", "--name", "dep", "--after", "g/a", "--", "true")
    assert (said.code, "needs what was done and whose run was removed since: g/a" in said.err) == (0, True), said
    for verb in ("rm", "ls"):
        said = say(verb, "g/")
        assert (said.code, "the runs of g/ were removed (holdfast rm)" in said.err) == (66, True), said
    for verb in ("show", "logs", "metrics", "diagnose", "rm", "restart"):
        said = say(verb, "g/a")
        assert (said.code, "the run of the job g/a was removed (holdfast rm)" in said.err) == (66, True), said
        assert "holdfast queue show g/a says how it ended; holdfast queue retry g/a runs it once more" in said.err
    said = say("logs", "g/", "-n", "1")
    assert (said.code, "no run of g/ is left" in said.err) == (66, True), said
    assert (
        "the runs of 2 jobs were removed, and the numbers with them (a, b)" in say("sweep", "export", "g", "g.csv").err
    )


def test_more_than_was_consented_to_is_not_cleared() -> None:
    submit("a", "b")
    say("queue", "cancel", "a")
    plan = plan_clear(())
    assert plan.question == "Take 1 job (a) out of the list? The runs stay."
    say("queue", "cancel", "b")
    with pytest.raises(UsageError, match=r"other jobs would be taken out"):
        clear(plan)
    assert len(states()) == 2


def test_a_job_that_was_cancelled_and_never_started_gives_its_name_and_its_followers_to_another() -> None:
    submit("ed")
    submit("after", options=("--after", "ed"))
    taken = say("submit", "--name", "ed", "--timeout", "1h", "--", "true")
    assert (taken.code, "holdfast queue cancel ed" in taken.err) == (64, True), taken
    say("queue", "cancel", "ed")
    again = say("submit", "--name", "ed", "--", "true")
    assert "it is cancelled; once more: holdfast queue retry ed" in again.err, again
    said = say("submit", "--name", "ed", "--timeout", "1h", "--", "true")
    assert (said.code, said.out) == (0, "ed\n"), said
    assert "in place of what was cancelled and never started, also for what waits for it: ed" in said.err
    assert states() == {"after": "blocked", "ed": "queued"}
    assert say("queue", "show", "ed", "--json").json()["spec"]["timeouts"]["total_s"] == 3600.0
    fail("ed")
    ran = say("submit", "--name", "ed", "--timeout", "2h", "--", "true")
    assert (ran.code, "give this one a name of its own" in ran.err) == (64, True), ran


def test_another_need_or_priority_is_never_dropped_in_silence() -> None:
    named = ("submit", "--group", "n", "--name")
    submit("n/a")
    submit("n/b", "n/c", "n/d", "n/e", options=("--after", "n/a", "--priority", "2"))
    said = say(*named, "b", "--priority", "2", "--", "true")
    way = "take that one out first (holdfast queue cancel n/b), then hand this one in again"
    assert (said.code, f"n/b is in the queue with --after n/a (this one: none): {way}" in said.err) == (64, True), said
    said = say(*named, "b", "--after", "n/a", "--", "true")
    way = "--priority 2 (this one: 0): change that one (holdfast queue edit n/b --priority 0)"
    assert (said.code, way in said.err) == (64, True), said
    assert say("queue", "edit", "n/b", "--priority", "0").code == 0
    assert say(*named, "b", "--after", "n/a", "--", "true").code == 0
    taken = say("queue", "cancel", "n/a")
    assert (taken.code, "n/b, n/c, n/d and 1 more wait for it, and do not start without it" in taken.err) == (0, True)
    say("queue", "cancel", "n/b")
    said = say(*named, "b", "--", "true")
    assert (said.code, "in place of what was cancelled and never started" in said.err) == (0, True), said
    assert (find("n/b").state, find("n/b").open_needs) == (JobState.QUEUED, 0)
    taken = say("queue", "cancel", "n/c", "n/d", "n/e", "--yes")
    assert "not start without" not in taken.err


def test_of_a_failed_job_the_way_with_another_command_is_named() -> None:
    submit("n/a")
    with Queue() as queue:
        make_run(queue.find(["n/a"])[0].runs_root, RUN.format("a"), ended(Outcome.FAILED, 1))
    fail("n/a")
    said = say("submit", "--group", "n", "--name", "a", "--", "false")
    assert (said.code, "holdfast restart n/a -- COMMAND (or --job FILE)" in said.err) == (64, True), said
    shown = say("queue", "show", "n/a").out
    assert f"or changed     holdfast restart {RUN.format('a')} -- COMMAND (or --job FILE)\n" in shown


def test_a_job_that_replaces_another_may_write_where_what_waits_for_it_writes() -> None:
    out = ("--", "echo", "--output-dir", "out")
    say("submit", "--name", "train", *out)
    say("submit", "--name", "eval", "--after", "train", *out)
    say("submit", "--name", "plot", "--after", "eval", *out)
    say("queue", "cancel", "train")
    said = say("submit", "--name", "train", "--timeout", "1h", *out)
    assert (said.code, said.out) == (0, "train\n"), said
    assert states() == {"train": "queued", "eval": "blocked", "plot": "blocked"}


def test_an_edit_of_the_job_itself_is_told_what_changes_it() -> None:
    submit("d")
    for option in ("--timeout", "--gpus"):
        said = say("queue", "edit", "d", option, "1")
        assert (said.code, "holdfast queue cancel JOB, then holdfast submit --name JOB" in said.err) == (64, True), said


def test_the_job_of_a_run_that_is_started_again_by_hand_is_open_again(tmp_path: Path) -> None:
    submit("a", "b")
    fail("a")
    with Queue() as queue:
        job = queue.find(["a"])[0]
        facts = {"queue": queue.settings().queue_id, "key": job.key, "group": job.group, "name": job.name}
    run_file = tmp_path / "run.json"
    run_file.write_text(json.dumps({"queued": {**facts, "queue": "another"}}))
    notify_queue(str(tmp_path))
    assert states() == {"a": "failed", "b": "queued"}
    run_file.write_text(json.dumps({"queued": facts}))
    notify_queue(str(tmp_path))
    assert states() == {"a": "queued", "b": "queued"}
    run("b")
    run_file.write_text(json.dumps({"queued": {**facts, "key": find("b").key, "name": "b"}}))
    notify_queue(str(tmp_path))
    assert states()["b"] == "running"


def test_unknown_jobs_get_near_ones() -> None:
    submit("train")
    for arguments in (("show", "trian"), ("cancel", "trian"), ("retry", "trian"), ("move", "trian", "--first")):
        said = say("queue", *arguments)
        assert said.code == 66, said
        assert "train" in said.err


def test_show_says_every_reason_and_what_takes_it_away() -> None:
    submit("a")
    submit("g/b", options=("--after", "default/a", "--not-before", "+1h"))
    say("queue", "pause", "g")
    say("queue", "pause")
    fail("a")
    said = say("queue", "show", "g/b")
    assert said.code == 0
    for words in ("needs a, which is failed", "not before", "group g is paused", "the whole queue is paused"):
        assert words in said.out
    assert "pass by itself: holdfast queue retry a; holdfast queue resume; holdfast queue resume g" in said.out
    value = say("queue", "show", "g/b", "--json").json()
    assert value["needs_a_person"] is True
    assert {reason["why"] for reason in value["reasons"]} >= {
        "needs_failed",
        "queue_paused",
        "group_paused",
        "not_before",
    }


def test_an_estimate_says_what_it_rests_on() -> None:
    submit("c", options=("--expected", "10m"))
    assert "ends in about 10m00s (from the expected time that was stated)" in say("queue", "show", "c").out
    for _ in range(2):
        say("submit", "--group", "g", "--", "true")
    assert "no job like it is done" in say("queue", "show", "g/true").out
    elsewhere = say("queue", "show", "gpu1:train")
    assert (elsewhere.code, "there is no place gpu1" in elsewhere.err) == (66, True), elsewhere.err
    run("g/true")
    put("g/true", JobState.PRODUCED)
    put("g/true", JobState.DONE, ended_at=60.0)
    assert "about 1m00s (from 1 done job)" in say("queue", "show", "g/true-2").out


def test_a_chain_that_goes_on_by_itself_is_not_dead_and_one_that_does_not_is() -> None:
    for name, need in (("a", ""), ("b", "a"), ("c", "b")):
        submit(f"ch/{name}", options=("--expected", "10m", *(("--after", need) if need else ())))
    put("ch/a", JobState.CLAIMED, run_id=RUN.format("a"))
    put("ch/a", JobState.RUNNING, started_at=time.time())
    said = say("queue", "show", "ch/c").out
    assert "starts in about 20m00s, ends in about 30m00s" in said, said
    say("queue", "pause", "ch/b")
    assert "what it needs does not go on by itself now" in say("queue", "show", "ch/c").out
    say("queue", "resume", "ch/b")
    put("ch/a", JobState.FAILED, outcome="failed", exit_code=1)
    assert "what it needs does not go on by itself now" in say("queue", "show", "ch/c").out


def test_a_job_that_the_worker_has_taken_meanwhile_stands_behind_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[str] = []

    def count(*_: object) -> dict[int, int]:
        began.append("ed")
        run("ed")
        return {}

    monkeypatch.setattr("holdfast.agent.queue.view.reasons._count_before_each", count)
    said = say("submit", "--name", "ed", "--", "true")
    assert (began, "holdfast: running\n" in said.err, "behind" in said.err) == (["ed"], True, False), said


def test_what_is_left_of_a_group_counts_the_time_before_which_a_job_does_not_start() -> None:
    submit("g/a", options=("--expected", "10s"))
    submit("g/b", options=("--expected", "10s", "--not-before", "+5h"))
    put("g/a", JobState.CLAIMED, run_id=RUN.format("a"))
    put("g/a", JobState.RUNNING, started_at=time.time())
    assert "about 5h00m" in say("queue").out


def test_a_job_whose_run_stands_in_line_has_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    submit("a", "b")
    run("a")
    said = say("queue", "show", "a").out
    assert "the job itself has not started" in said
    assert "started  " not in said
    assert say("queue", "show", "a", "--json").json()["began_at"] is None
    row = IndexRow("", "", 0, 1, "running", started_at="2026-11-20T10:00:00Z")
    monkeypatch.setattr("holdfast.agent.queue.view.job.read_row", lambda *_: row)
    assert "has not started" not in say("queue", "show", "a").out


def test_a_job_for_cards_shows_who_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "2x80GB")
    submit("a", options=("--gpus", "1"))
    said = say("queue", "show", "a")
    assert "card 0: free" in said.out
    assert "1 card" in said.out


def test_several_jobs_are_not_shown_as_one() -> None:
    submit("g/a", "g/b")
    assert say("queue", "show", "g/").code == 64


def test_text_of_others_cannot_steer_the_terminal() -> None:
    submit("a")
    put("a", JobState.HELD, note="\x1b[2Jgone")
    assert "\x1b" not in say("queue").out + say("queue", "show", "a").out + say("wait", "a").out


def test_jobs_and_groups_complete() -> None:
    submit("alpha", "night/beta")
    with Queue() as queue:
        assert [word for word, _ in pick_words(queue, "")] == ["default/", "night/", "alpha", "night/beta"]
        assert [word for word, _ in pick_words(queue, "night/b")] == ["night/beta"]


@pytest.mark.slow
def test_selected_jobs_that_do_not_fit_the_list_are_counted() -> None:
    submit(*(f"c{number}" for number in range(22)))
    assert "2 more wait;" in say("queue", "ls", "--state", "waiting").err
    assert say("queue", "cancel", "c0").code == 0
    assert "1 more waits;" in say("queue", "ls", "--state", "waiting").err


def test_a_list_says_why_in_few_words_and_show_has_them_all() -> None:
    submit("night/a", "night/b", options=("--max-parallel", "1"))
    submit("after", options=("--after", "night/"))
    run("night/a")
    lines = say("queue").out.splitlines()
    assert next(line for line in lines if line.startswith("night/b")).endswith("group night is full: 1 of 1 at work")
    assert next(line for line in lines if line.startswith("after")).endswith(
        "needs night/a, which is running; and 1 more"
    )
    assert "1 of 1 at work (night/a)" in say("queue", "show", "night/b").out
    assert "needs night/b, which is queued" in say("queue", "show", "after").out


def test_a_job_that_needs_a_failed_one_is_told_with_the_whole_command() -> None:
    submit("night/a")
    fail("night/a")
    taken = say("submit", "--name", "b", "--group", "night", "--after", "night/a", "--", "true")
    why = "needs night/a, which is failed; go on: holdfast queue retry night/a"
    assert f"blocked: {why}" in taken.err
    seen = say("queue")
    assert next(line for line in seen.out.splitlines() if line.startswith("night/b")).endswith(why)
    assert "`holdfast queue show night/b` says what it takes" in seen.err
    assert "night/b needs night/a (failed): holdfast queue retry night/a" in say("wait", "night/b").err


def test_failures_are_pointed_at_and_their_job_says_how_to_find_out_why() -> None:
    submit("night/a")
    fail("night/a")
    assert "1 failed: holdfast queue ls night --state failed" in say("queue", "ls", "night").err
    os.makedirs(find("night/a").run_dir or "")
    shown = say("queue", "show", "night/a").out
    assert f"holdfast diagnose {RUN.format('a')}" in shown
    assert "holdfast queue retry night/a" in shown


def test_a_time_is_said_as_people_write_it() -> None:
    submit("a")
    assert "not-before 2099-01-02 08:00: a" in say("queue", "edit", "a", "--not-before", "2099-01-02T08:00").out


def test_nothing_to_cancel_is_no_success_and_many_are_taken_back_by_their_group() -> None:
    submit("done")
    fail("done")
    assert say("queue", "cancel", "done").code == 1
    submit(*(f"night/c{number}" for number in range(7)))
    assert "holdfast queue retry night/\n" in say("queue", "cancel", "night/", "--yes").err


def test_a_jobs_name_finds_its_run_and_says_when_there_is_none() -> None:
    submit("night/a", "night/b")
    run("night/a")
    assert find_run("night/a").run_id == RUN.format("a")
    submit("c", "d")
    run("d")
    told = {
        "night/b": "job night/b has no run yet: it is queued",
        "night/c": "nor a job of the queue",
        "c": "job c has no run yet: it is queued",
        "d": "run of the job d has gone",
        "e": "no run answers to 'e'",
    }
    for label, words in told.items():
        with pytest.raises(NoSuchRun, match=words):
            find_run(label)


def test_a_jobs_name_is_its_run_for_lists_removals_checkpoints_and_copies(
    isolated_environment: dict[str, str], tmp_path: Path
) -> None:
    root, run_id = isolated_environment["HOLDFAST_RUNS"], RUN.format("a")
    submit("lrs/a", "lrs/b")
    run_dir = make_run(root, run_id, ended())
    make_run(root, RUN.format("other"), ended())
    put("lrs/a", JobState.CLAIMED, run_id=run_id, runs_root=root)
    assert [one["run_id"] for one in say("ls", "lrs/a", "--json").json()["runs"]] == [run_id]
    assert "the job lrs/b has no run yet" in say("ls", "lrs/b").err
    for options in (("--older", "0s"), ("--state", "succeeded")):
        said = say("rm", "--dry-run", "--json", *options, "lrs/a")
        assert [one["run_id"] for one in said.json()["runs"]] == [run_id], said
    assert "no ended run matches" in say("rm", "--yes", "--state", "failed", "lrs/a").err
    os.makedirs(f"{run_dir}/checkpoints", exist_ok=True)
    assert say("checkpoints", "ls", "--json", "lrs/a").json()["directory"] == f"{run_dir}/checkpoints"
    assert "there is no " in say("checkpoints", "ls", "lrs/c").err
    Path(run_dir, "artifacts", "r.txt").write_text("r")
    assert say("cp", "lrs/a/artifacts/r.txt", "copied").code == 0
    assert (tmp_path / "copied").read_text() == "r"
    make_run(root, RUN.format("lrs"), ended())
    assert (say("cp", "lrs/a/artifacts/r.txt", "again").code, os.path.lexists("again")) == (66, False), (
        "a run's name first"
    )


def test_of_a_jobs_name_without_a_path_nothing_is_copied(isolated_environment: dict[str, str]) -> None:
    root, run_id = isolated_environment["HOLDFAST_RUNS"], RUN.format("a")
    submit("lrs/a")
    make_run(root, run_id, ended())
    put("lrs/a", JobState.CLAIMED, run_id=run_id, runs_root=root)
    said = say("cp", "lrs/a", "copied")
    assert (said.code, "`holdfast files lrs/a` lists what is there" in said.err) == (64, True), said
    assert (said.code, "no run answers to 'lrs'" in say("cp", "lrs/c/artifacts/r.txt", "copied").err) == (64, True)


def test_of_a_removed_run_nothing_is_advised_that_needs_it(tmp_path: Path) -> None:
    submit("a")
    fail("a")
    said = say("queue", "show", "a").out
    assert f"{RUN.format('a')}  (not there any more)" in said
    assert "holdfast queue retry a" in said
    assert "holdfast diagnose" not in said


def test_the_beginning_of_a_long_name_and_a_name_without_its_group_are_understood() -> None:
    submit("night/train-lr-28e-4-s-0.5-n-4-152715fc", "night/train-lr-1-0a1b", "first")
    assert "night/train-lr-28e-4-s-0.5-n-4-152715fc" in say("queue", "show", "night/train-lr-28").err
    assert "(near: night/train-lr-1-0a1b" in say("queue", "show", "train-lr-1-0a1b").err
    said = say("submit", "--group", "more", "--name", "z", "--after", "first", "--", "true")
    assert (said.code, "near: default/first" in said.err) == (64, True)


def test_every_way_on_is_told_where_several_things_need_a_person() -> None:
    submit("a")
    say("queue", "pause")
    say("queue", "set", "--cpu-slots", "0")
    said = say("queue", "show", "a").out
    assert "there are no CPU slots" in said
    assert "by itself: holdfast queue resume; holdfast queue set --cpu-slots auto" in said


def test_json_is_the_record_that_the_text_is_made_of() -> None:
    submit("a", "night/b", "night/c", options=("--expected", "10m"))
    run("a")
    say("queue", "pause", "night")
    value = say("queue", "ls", "--json").json()
    assert {group["name"]: group["counts"] for group in value["groups"]} == {
        "default": {"running": 1},
        "night": {"queued": 2},
    }
    assert [(job["label"], job["job"]["state"], job["left_s"]) for job in value["active"]] == [("a", "running", 0.0)]
    assert [(job["label"], job["why"]) for job in value["jobs"]] == [
        ("night/b", "group night is paused"),
        ("night/c", "group night is paused"),
    ]
    assert "group night is PAUSED; go on: holdfast queue resume night" in value["warnings"]
    done = say("queue", "cancel", "night/b", "--json").json()
    assert [(job["job"], job["state"]) for job in done["jobs"]] == [("night/b", "cancelled")]
    assert (done["did"], done["exit_code"]) == ("cancelled", 0)
    assert say("queue", "set", "--cpu-slots", "3", "--json").json()["cpu_slots"] == 3
    assert say("queue", "pause", "--json").json()["active"] == 1


@pytest.mark.slow
def test_a_rebuilt_queue_is_told_of_with_the_answer_or_with_the_error() -> None:
    submit("a")
    for arguments in (("queue",), ("queue", "show", "nothing"), ("queue", "show", "a")):
        with Queue() as queue:
            path = queue.path
        with open(path, "r+b") as file:
            file.write(b"no database at all")
        assert "made again" in say(*arguments).err, arguments


def test_looking_at_a_queue_that_nobody_has_made_makes_none() -> None:
    for words in (("queue",), ("queue", "ls", "--json"), ("queue", "show", "x"), ("queue", "check"), ("wait",)):
        assert say(*words).code in (0, 1, 64, 66)
    listed = say("queue", "--json").json()
    assert (listed["queue"], listed["jobs"], listed["worker"]) == (queue_directory(), [], False)
    assert not os.path.exists(os.path.dirname(queue_directory()))
