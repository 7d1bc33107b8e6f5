"""``holdfast logs``: the job's bytes as they are, of any attempt, live or ended."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from holdfast.model import wire
from holdfast.model.run import Created, Outcome
from tests.cli.conftest import ENTRY
from tests.cli.live import live_run, started
from tests.cli.queues import no_worker, say
from tests.rundirs import ended, living_process, make_run, running, write, write_events
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli

__all__ = ["no_worker"]


@pytest.fixture
def run_dir(isolated_environment: dict[str, str]) -> str:
    root = isolated_environment["HOLDFAST_RUNS"]
    make_run(root, state=ended(Outcome.FAILED, 1))
    run_dir = make_run(root, state=ended(), attempt=2)
    write(f"{wire.attempt_dir(run_dir, 1)}/{wire.OUTPUT}", "first\n")
    write(f"{wire.attempt_dir(run_dir, 2)}/{wire.OUTPUT}", "one\ntwo\nthree")
    write(f"{wire.attempt_dir(run_dir, 2)}/{wire.SUPERVISOR_LOG}", "2026-11-20 the supervisor speaks\n")
    write_events(run_dir, 2, "preflight", "running", "ended")
    return run_dir


@pytest.mark.slow
def test_the_newest_attempts_bytes_are_printed_untouched(holdfast: Command, run_dir: str) -> None:
    assert holdfast("logs", "digits").out == "one\ntwo\nthree"
    assert holdfast("logs", "-n", "2", "digits").out == "two\nthree"
    assert holdfast("logs", "-n", "0", "digits").out == ""


@pytest.mark.slow
@pytest.mark.requirement("MON-23")
def test_MON_23_lines_of_several_runs_carry_their_names_and_are_filtered(holdfast: Command, run_dir: str) -> None:
    other = make_run(os.environ["HOLDFAST_RUNS"], "20261120-100500-probe-0a1c", state=ended())
    write(f"{wire.attempt_dir(other, 1)}/{wire.OUTPUT}", "two of probe\nlast")
    assert run_dir != other
    assert holdfast("logs", "digits", "probe", "-n", "1").out == "digits | three\nprobe | last\n"
    assert holdfast("logs", "digits", "probe", "--grep", "^t").out == (
        "digits | two\ndigits | three\nprobe | two of probe\n"
    )
    assert holdfast("logs", "digits", "--grep", "o").out == "one\ntwo\n"
    found = holdfast("logs", "--json", "digits", "probe", "--grep", "two").json()
    assert [one["attempts"][0]["lines"] for one in found["runs"]] == [["two"], ["two of probe"]]
    assert holdfast("logs", "digits", "--grep", "(").code == 64
    assert holdfast("logs", "nosuch/").code == 66


@pytest.mark.slow
@pytest.mark.requirement("MON-23")
def test_MON_23_following_several_shows_the_matching_lines_of_each_while_they_live(
    isolated_environment: dict[str, str], tmp_path: Path
) -> None:
    root, alive = isolated_environment["HOLDFAST_RUNS"], living_process(os.getpid())
    ids = {name: f"20261120-10000{n}-{name}-0a1{n}" for n, name in enumerate(("one", "two"))}
    dirs = {name: make_run(root, run_id, state=running(), supervisor=alive) for name, run_id in ids.items()}

    def append(name: str, text: str) -> None:
        with open(f"{wire.attempt_dir(dirs[name], 1)}/{wire.OUTPUT}", "a", encoding="utf-8") as file:
            file.write(text)

    def end(name: str) -> None:
        over = wire.attempt_dir(make_run(tmp_path / "over", ids[name], state=ended()), 1)
        for record in (wire.EXIT, wire.STATE):
            os.replace(f"{over}/{record}", f"{wire.attempt_dir(dirs[name], 1)}/{record}")

    append("one", "loss before\nnoise\n")
    append("two", "noise\n")
    with started("logs", "-f", "one", "two", "--grep", "^loss") as follower:
        assert follower.stdout is not None
        read = follower.stdout.readline
        assert read() == "one | loss before\n"
        # Each line is waited for while both live: nothing here can come from a look at the end.
        append("two", "noise\nloss 1\n")
        assert read() == "two | loss 1\n"
        append("one", "noise\nloss ")
        append("two", "loss 2\n")
        assert read() == "two | loss 2\n", "a line without its end is none yet"
        append("one", "3\n")
        assert read() == "one | loss 3\n"
        end("two")
        append("one", "no loss\nloss 4\n")
        assert read() == "one | loss 4\n"
        assert follower.poll() is None
        append("one", "loss last")
        end("one")
        out, err = follower.communicate(timeout=LIMIT_S)
        assert (follower.returncode, out) == (0, "one | loss last\n")
        assert all(f"{run_id} succeeded" in err for run_id in ids.values())


@pytest.mark.slow
def test_attempts_are_chosen(holdfast: Command, run_dir: str) -> None:
    assert holdfast("logs", "--attempt", "1", "digits").out == "first\n"
    done = holdfast("logs", "--attempt", "all", "digits")
    assert done.out == "first\none\ntwo\nthree"
    assert "attempt 1" in done.err
    for wrong in ("3", "x", "-1"):
        done = holdfast("logs", f"--attempt={wrong}", "digits")
        assert done.code == 66
        assert "it has 1, 2" in done.err


@pytest.mark.requirement("OBS-07")
def test_OBS_07_the_supervisors_words_and_the_events_are_apart(holdfast: Command, run_dir: str) -> None:
    assert holdfast("logs", "--supervisor", "digits").out == "2026-11-20 the supervisor speaks\n"
    lines = holdfast("logs", "--events", "digits").out.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["preflight", "running", "ended"]
    assert holdfast("logs", "--events", "--supervisor", "digits").code == 64


def test_json_has_the_lines(holdfast: Command, run_dir: str) -> None:
    value = holdfast("logs", "--json", "-n", "1", "digits").json()
    assert value["attempts"][0]["lines"] == ["three"]
    assert value["attempts"][0]["exists"] is True
    assert holdfast("logs", "--json", "-f", "digits").code == 64


def test_a_run_without_output_says_so(holdfast: Command, run_dir: str) -> None:
    os.unlink(f"{wire.attempt_dir(run_dir, 2)}/{wire.OUTPUT}")
    done = holdfast("logs", "digits")
    assert (done.code, done.out) == (0, "")
    assert "has written no output.log" in done.err


def test_following_an_ended_run_ends(holdfast: Command, run_dir: str) -> None:
    done = holdfast("logs", "-f", "-n", "1", "digits")
    assert (done.code, done.out) == (0, "three")
    assert "succeeded" in done.err


def test_following_a_run_that_nobody_takes_up_ends(
    holdfast: Command, isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(isolated_environment["HOLDFAST_RUNS"], state=Created())
    monkeypatch.setattr("holdfast.agent.view.live.logs.UNSTARTED_S", 0.05)
    done = holdfast("logs", "-f", "digits")
    assert (done.code, done.out) == (0, "")
    assert "created" in done.err


@pytest.mark.slow
@pytest.mark.requirement("OBS-09")
def test_OBS_09_following_a_live_run_prints_as_it_comes_until_it_ends(holdfast: Command) -> None:
    body = 'echo ready; until [ -e "$HOLDFAST_ARTIFACT_DIR/go" ]; do sleep 0.05; done; echo done; exit 5'
    with live_run(holdfast, job=("sh", "-c", body)) as run, started("logs", "-f", run.run_id) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "ready\n"
        write(f"{run.run_dir}/artifacts/go", "")
        assert follower.stdout.readline() == "done\n"
        assert follower.wait(LIMIT_S) == 0


@pytest.mark.slow
def test_a_reader_that_leaves_ends_the_following(holdfast: Command) -> None:
    body = "echo ready; while :; do echo more; sleep 0.05; done"
    with live_run(holdfast, job=("sh", "-c", body)) as run, started("logs", "-f", run.run_id) as follower:
        assert follower.stdout is not None
        follower.stdout.readline()
        follower.stdout.close()
        follower.stdout = None
        assert follower.wait(LIMIT_S) == 141


@pytest.mark.slow
def test_capped_output_is_printed_with_its_cut(holdfast: Command) -> None:
    code = "print('first'); [print('x' * 60) for _ in range(20000)]; print('last')"
    done = holdfast("run", "--json", "--output-max", "256KiB", "--", "python3", "-c", code)
    assert done.code == 0
    printed = holdfast("logs", done.json()["run_dir"]).out
    assert printed.startswith("first\n")
    assert printed.endswith("last\n")
    assert "bytes were cut here" in printed


class TestAGroup:
    """``logs GROUP/``: of the jobs of a group that have a run, and with -f of those too that get one."""

    def test_following_a_group_shows_each_job_as_it_begins_until_the_last_one_has_ended(
        self, holdfast: Command, tmp_path: Path
    ) -> None:
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        assert holdfast("queue", "pause").code == 0
        for name, script in (("one", f"echo first; cat {gate}"), ("two", "echo second")):
            assert holdfast("submit", "--group", "g", "--name", name, "--", "sh", "-c", script).code == 0
        assert holdfast("queue", "set", "--cpu-slots", "1").code == 0
        said = holdfast("logs", "g/")
        assert (said.code, "no job of g/ has a run" in said.err) == (66, True)
        assert holdfast("queue", "resume").code == 0
        with started("logs", "-f", "g/") as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "one | first\n"
            gate.write_text("go on\n")
            out, err = follower.communicate(timeout=LIMIT_S)
        assert (follower.returncode, out) == (0, "one | go on\ntwo | second\n"), err
        assert err.count(" succeeded") == 2
        assert holdfast("logs", "g/", "-n", "1").out == "one | go on\ntwo | second\n"
        assert holdfast("run", "--", "true").code == 0
        listed = holdfast("ls", "g/", "--json").json()["runs"]
        assert sorted(run["name"] for run in listed) == ["one", "two"]
        none = holdfast("ls", "g/", "--state", "failed").err
        assert "is failed and is called g/" in none

    @pytest.mark.usefixtures("no_worker")
    def test_a_group_of_which_nothing_goes_on_is_not_followed_for_ever(self) -> None:
        for name in ("a", "b"):
            say("submit", "--group", "g", "--name", name, "--", "true")
        say("queue", "pause", "g")
        said = say("logs", "g/", "-f")
        assert (said.code, said.out) == (0, "")
        assert "nothing more comes by itself: group g is paused (holdfast queue resume g)" in said.err

    @pytest.mark.usefixtures("no_worker")
    def test_a_group_that_is_not_there_is_named(self) -> None:
        for verb in ("logs", "ls"):
            assert "there is no group g/\n  holdfast queue lists the groups" in say(verb, "g/").err

    @pytest.mark.usefixtures("no_worker")
    @pytest.mark.parametrize("has_places", [False, True])
    def test_a_group_is_pointed_at_where_a_run_is_named(
        self, has_places: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.cli.verbs.ls.has_places", lambda: has_places)
        say("submit", "--group", "g", "--name", "a", "--", "true")
        for verb in ("logs", "ls"):
            said = say(verb, "g")
            assert (said.code, "their runs: holdfast ls g/" in said.err) == (66, True), said
        assert "no job of g/ has a run" in say("ls", "g/").err


def test_that_no_line_matches_is_said(isolated_environment: dict[str, str]) -> None:
    run_dir = make_run(isolated_environment["HOLDFAST_RUNS"], state=ended())
    write(f"{run_dir}/attempts/1/{wire.OUTPUT}", "loss 1\nloss 2\n")
    said = say("logs", "digits", "--grep", "LOSS")
    assert (said.code, said.out, "no line matches 'LOSS'" in said.err) == (0, "", True)
    for words in (("--grep", "ZZ", "-n", "0"), ("--grep", "(?i)zz")):
        said = say("logs", "digits", *words)
        assert (said.code, "no line matches" in said.err) == (0, "-n" not in words)


@pytest.mark.parametrize("verb", ["logs", "metrics", "show"])
def test_a_pattern_where_a_run_is_named_is_told_as_one(verb: str) -> None:
    said = say(verb, "job*")
    assert (said.code, "holdfast ls 'job*' lists those that match" in said.err) == (66, True)


@pytest.mark.slow
def test_who_follows_leaves_when_nobody_reads_though_the_job_is_silent(holdfast: Command) -> None:
    with live_run(holdfast) as run:
        for words in ((run.run_id,), (run.run_id, "--grep", "ready")):
            with subprocess.Popen([*ENTRY, "logs", "-f", *words], stdout=subprocess.PIPE) as follower:
                assert follower.stdout is not None
                assert follower.stdout.readline() == b"ready\n"
                follower.stdout.close()
                assert follower.wait(LIMIT_S) == 141
