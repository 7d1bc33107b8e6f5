"""``holdfast ls``: newest first, live ones always, right with and without its index."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.control.create import create_run
from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.run_view import RunView, recorded_processes
from holdfast.core.moments import format_moment
from holdfast.core.run.events import RunPlan
from holdfast.host.clock import format_utc, parse_utc, utc_now
from holdfast.host.process.pidfd import send_signal
from holdfast.host.process.processes import identify_self
from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.lease import LeasedDevice
from holdfast.model.record import replace
from holdfast.model.run import Outcome, Preflight
from tests.cli.live import live_run, started
from tests.rundirs import dead_process, ended, make_run, running, write
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


@pytest.fixture
def runs(isolated_environment: dict[str, str]) -> str:
    return isolated_environment["HOLDFAST_RUNS"]


def run_id(number: int, name: str = "digits") -> str:
    return f"20261120-1000{number:02d}-{name}-0a1b"


def test_no_runs_says_how_to_begin(holdfast: Command) -> None:
    done = holdfast("ls")
    assert (done.code, done.out) == (0, "")
    assert "holdfast run" in done.err
    nothing = {"schema": 1, "runs": [], "total": 0, "known": 0, "notice": None}
    assert holdfast("ls", "--json").json() == nothing


def test_the_table_of_ended_runs(holdfast: Command, runs: str) -> None:
    make_run(runs, run_id(1), ended())
    make_run(runs, run_id(2, "resnet"), ended(Outcome.FAILED, 3))
    write(f"{runs}/{run_id(3)}", "a file, not a run")
    start = format_moment(parse_utc("2026-11-20T10:00:03Z"), time.time())
    for _ in range(2):
        assert holdfast("ls").out.replace(start, "2026-11-20 10:00") == (
            "RUN                          STATE       START              TIME  CARDS  STEP  LOSS  EXIT\n"
            "20261120-100003-digits-0a1b  unreadable  2026-11-20 10:00      -  -         -     -     -\n"
            "20261120-100002-resnet-0a1b  failed      2026-11-20 10:00  5.0 s  -         -     -     3\n"
            "20261120-100001-digits-0a1b  succeeded   2026-11-20 10:00  5.0 s  -         -     -     0\n"
        )


def test_progress_and_cards_of_a_live_run(holdfast: Command, runs: str) -> None:
    cards = (LeasedDevice("GPU-a", 0, "A100"), LeasedDevice("GPU-b", 3, "A100"))
    run_dir = make_run(runs, state=running(devices=cards), supervisor=identify_self())
    write(f"{wire.attempt_dir(run_dir, 1)}/{wire.HEARTBEAT}", b'{"step": 1200, "loss": NaN}')
    row = holdfast("ls", "--json").json()["runs"][0]
    assert (row["condition"], row["cards"], row["step"], row["loss"]) == ("running", "0,3", 1200, "nan")
    assert "1200" in holdfast("ls").out


@pytest.mark.requirement("MON-07")
def test_MON_07_a_run_that_does_no_step_is_shown_as_such_with_no_time_left(holdfast: Command, runs: str) -> None:
    run_dir = make_run(runs, run_id(1), running(), supervisor=identify_self())
    path = Path(run_dir, wire.RUN)
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "job": {**record["job"], "stall": {"no_progress_s": 20.0}}}))
    beat = {"step": 40, "start_step": 0, "planned_steps": 500, "steps_per_s": 10.0, "phase": "train"}
    for age_s, words in ((1.0, ["running", "46"]), (25.0, ["running: no step for 2"])):
        told = {**beat, "time": time.time() - age_s}
        write(f"{wire.attempt_dir(run_dir, 1)}/{wire.HEARTBEAT}", json.dumps(told))
        done = holdfast("ls").out
        assert all(word in done for word in words), done
        assert ("LEFT" in done, "no step for" in done) == (age_s < 20, age_s > 20)
    (row,) = holdfast("ls", "--json").json()["runs"]
    assert (row["condition"], row["left_s"], row["standstill_s"] > 20) == ("running", None, True)


def test_a_time_limit_that_ends_a_run_sooner_is_what_it_has_left(holdfast: Command, runs: str) -> None:
    began = time.time() - 90.0
    run_dir = make_run(runs, run_id(1), running(), supervisor=identify_self())
    attempt_dir = wire.attempt_dir(run_dir, 1)
    beat = {"step": 40, "planned_steps": 500, "steps_per_s": 10.0, "phase": "train", "time": time.time()}
    write(f"{attempt_dir}/{wire.HEARTBEAT}", json.dumps(beat))
    for limit_s, least, most in ((110.0, 1.0, 20.0), (900.0, 46.0, 46.0), (60.0, 0.0, 0.0)):
        plan = RunPlan(created_epoch_s=began, total_s=limit_s)
        write(f"{attempt_dir}/{wire.MANIFEST}", json.dumps({"plan": wire.encode(plan)}))
        (row,) = holdfast("ls", "--json").json()["runs"]
        assert least <= row["left_s"] <= most, limit_s


def test_live_runs_are_shown_however_old(holdfast: Command, runs: str) -> None:
    make_run(runs, run_id(1, "old"), running(), supervisor=identify_self())
    for number in range(2, 9):
        make_run(runs, run_id(number), ended())
    done = holdfast("ls", "-n", "3")
    assert [line.split()[1] for line in done.out.splitlines()[1:]] == ["succeeded"] * 3 + ["running"]
    assert "4 older runs" in done.err
    assert len(holdfast("ls", "--all").out.splitlines()) == 9


@pytest.mark.slow
def test_states_select(holdfast: Command, runs: str) -> None:
    make_run(runs, run_id(1), ended())
    make_run(runs, run_id(2), ended(Outcome.FAILED, 1))
    make_run(runs, run_id(3), running(), supervisor=identify_self())

    def listed(*states: str) -> list[str]:
        arguments = [word for state in states for word in ("-s", state)]
        return [row["condition"] for row in holdfast("ls", "--json", *arguments).json()["runs"]]

    assert listed("failed") == ["failed"]
    assert listed("live") == ["running"]
    assert listed("failed", "running") == ["running", "failed"]
    assert "is preempted" in holdfast("ls", "-s", "preempted").err
    typo = make_run(runs, run_id(4), ended(Outcome.FAILED, 78))
    path = f"{wire.attempt_dir(typo, 1)}/{wire.EXIT}"
    with open(path, encoding="utf-8") as file:
        facts = json.load(file)
    write(path, json.dumps({**facts, "failure_class": "refused"}))
    refused = holdfast("ls", "--json", "-s", "refused").json()["runs"]
    assert [(row["run_id"], row["failure"]) for row in refused] == [(run_id(4), "refused")]
    assert holdfast("ls", "-s", "out_of_memory").code == 0


@pytest.mark.requirement("PROC-15")
def test_PROC_15_a_run_that_a_reboot_took_becomes_lost(holdfast: Command, runs: str) -> None:
    run_dir = make_run(runs, state=running(), supervisor=dead_process(), boot="the-boot-before")
    row = holdfast("ls", "--json").json()["runs"][0]
    assert (row["condition"], row["ended"], row["exit_code"]) == ("lost", False, None)
    assert holdfast("reconcile").code == 0
    row = holdfast("ls", "--json").json()["runs"][0]
    assert (row["condition"], row["ended"], row["exit_code"]) == ("lost", True, 71)
    assert observe_run(run_dir).over


READERS = (
    *(("ls",), ("show", "digits"), ("show", "--json", "digits"), ("logs", "digits"), ("attach", "digits")),
    *(("wait", "digits"), ("diagnose", "digits"), ("gpus",), ("prune", "--dry-run", "digits")),
    *(("checkpoints", "ls", "digits"), ("patrol",), ("handbook", "digits"), ("reconcile", "--dry-run")),
)


def read_tree(root: str) -> dict[str, tuple[int, int, bytes]]:
    """Every file and directory below `root`: mode, time of the last change, content."""
    found = {}
    for directory, _, names in os.walk(root):
        for path in (directory, *(f"{directory}/{name}" for name in names)):
            facts = os.lstat(path)
            content = b"" if os.path.isdir(path) else Path(path).read_bytes()
            found[path] = (facts.st_mode, facts.st_mtime_ns, content)
    return found


@pytest.mark.requirement("PROC-15")
@pytest.mark.parametrize("verb", READERS, ids=" ".join)
def test_who_only_looks_changes_nothing_of_a_lost_run(holdfast: Command, runs: str, verb: tuple[str, ...]) -> None:
    """Seen: `ls` wrote `ended: lost` into the copy of a run that was alive elsewhere."""
    run_dir = make_run(runs, state=running(), supervisor=dead_process())
    before = read_tree(runs)
    done = holdfast(*verb)
    assert done.code in (0, 1, 71), done
    assert "Traceback" not in done.err
    assert read_tree(runs) == before
    assert observe_run(run_dir).vanished


@pytest.mark.requirement("PROC-15")
@pytest.mark.parametrize("verb", [("stop", "never"), ("reconcile",)])
def test_PROC_15_settling_a_run_never_starts_its_job(
    holdfast: Command, runs: str, tmp_path: Path, verb: tuple[str, ...]
) -> None:
    """Its supervisor died before the job: it is called off, and not run in the environment of whoever comes by."""
    spec = JobSpec(name="never", command=("touch", f"{tmp_path}/ran"), workdir=str(tmp_path))
    run_dir, _ = create_run(spec, runs, argv=(), cwd="/", environ=os.environ)
    state = observe_run(run_dir).state
    assert state is not None
    abandoned = replace(state, supervisor=dead_process(), state=Preflight(utc_now()))
    write(f"{wire.attempt_dir(run_dir, 1)}/{wire.STATE}", wire.to_bytes(abandoned))
    holdfast(*verb)
    view = wait_until(lambda: _if_over(run_dir))
    assert view is not None
    assert view.exit_code != 0
    assert not (tmp_path / "ran").exists()
    assert "restart" in view.note


@pytest.mark.slow
@pytest.mark.requirement("PROC-15")
def test_nobody_waits_for_ever_for_a_run_that_is_lost(holdfast: Command) -> None:
    """Supervisor, keeper and job are killed at once: who waits is told so, and the verb that settles it finishes it."""
    with live_run(holdfast) as run, started("wait", run.run_id) as waiting, started("attach", run.run_id) as following:
        state = run.look().state
        assert state is not None
        victims = (state.supervisor, *recorded_processes(state.state))
        for process in victims:
            assert process is not None
            send_signal(process, signal.SIGKILL)
        for follower in (waiting, following):
            assert follower.wait(LIMIT_S) == 71
            assert follower.stderr is not None
            said = follower.stderr.read()
            assert "every process that was recorded is gone" in said
            assert "holdfast reconcile" in said
        view = run.look()
        assert (view.condition, view.over) == ("lost", False)
        assert holdfast("reconcile").code == 0
        assert (run.look().condition, run.look().exit_code) == ("lost", 71)
        assert holdfast("wait", run.run_id).code == 71


def _if_over(run_dir: str) -> RunView | None:
    view = observe_run(run_dir)
    return view if view.over and not view.supervised else None


@pytest.mark.requirement("OBS-09")
def test_OBS_09_one_bad_run_hides_no_other(holdfast: Command, runs: str) -> None:
    make_run(runs, run_id(1), ended())
    bad = make_run(runs, run_id(2), running(), supervisor=dead_process())
    write(f"{wire.attempt_dir(bad, 1)}/{wire.STATE}", b"\x00" * 100)
    os.mkdir(f"{runs}/{run_id(3)}")
    conditions = [row["condition"] for row in holdfast("ls", "--json").json()["runs"]]
    assert conditions == ["unreadable", "unreadable", "succeeded"]


@pytest.mark.slow
def test_runs_elsewhere_are_found_by_root_and_remembered(holdfast: Command, tmp_path: Path) -> None:
    done = holdfast("run", "--runs", str(tmp_path / "there"), "--name", "away", "--", "true")
    assert done.code == 0
    assert "away" in holdfast("ls").out
    assert holdfast("show", "away").code == 0
    nowhere = holdfast("ls", "--runs", str(tmp_path / "nowhere"))
    assert (nowhere.code, nowhere.out, f"there is no directory {tmp_path}/nowhere" in nowhere.err) == (66, "", True)


def test_a_root_that_cannot_be_one_is_neither_remembered_nor_named(holdfast: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for root in (tmp_path / "file", Path("/proc/none")):
        assert holdfast("run", "--runs", str(root), "--", "true").code == 74
    assert "cannot be read" not in holdfast("ls").err
    missing = holdfast("show", "nobody")
    assert (missing.code, "/proc/none" in missing.err, "/file" in missing.err) == (66, False, False), missing.err


def test_a_damaged_index_is_one_notice(holdfast: Command, runs: str, isolated_environment: dict[str, str]) -> None:
    make_run(runs, run_id(1), ended())
    holdfast("ls")
    write(isolated_environment["XDG_STATE_HOME"] + "/holdfast/index.db", b"garbage" * 1000)
    done = holdfast("ls")
    assert done.code == 0
    assert run_id(1) in done.out
    assert done.err.count("was damaged") == 1
    assert holdfast("ls").err == ""


@pytest.mark.slow
@pytest.mark.requirement("OBS-09")
def test_OBS_09_a_live_run_is_listed_while_it_runs_and_after(holdfast: Command) -> None:
    with live_run(holdfast, "--name", "live") as run:
        assert "running" in holdfast("ls").out
        holdfast("stop", "--now", run.run_id)
        assert "stopped" in holdfast("ls").out


def test_a_misspelt_state_is_an_error_not_an_empty_list(holdfast: Command, runs: str) -> None:
    make_run(runs, run_id(1), ended())
    done = holdfast("ls", "--state", "live2")
    assert (done.code, done.out) == (64, "")
    assert "no state 'live2'" in done.err
    assert "did you mean live?" in done.err
    for word, states in (("finished", "succeeded --state stopped"), ("dead", "failed --state timed_out --state lost")):
        told = holdfast("ls", "-s", word)
        assert (told.code, f"what a patrol calls so: --state {states}" in told.err) == (64, True), told
    assert holdfast("ls", "--state", "running").code == 0


def test_names_and_times_select(holdfast: Command, runs: str) -> None:
    recent = f"{format_utc(time.time() - 86400)[:10].replace('-', '')}-100000-lr-2-0a1b"
    for made in (run_id(1, "lr-1"), run_id(2), run_id(3, "eval")):
        make_run(runs, made, ended(), created_at="2026-11-20T10:00:00.000Z")

    def listed(*words: str) -> list[str]:
        return [row["run_id"] for row in holdfast("ls", "--json", *words).json()["runs"]]

    assert listed("digits") == [run_id(2)]
    assert listed("lr-*", "20261120-100003") == [run_id(3, "eval"), run_id(1, "lr-1")]
    assert listed("*") == [run_id(3, "eval"), run_id(2), run_id(1, "lr-1")]
    assert listed("nobody*") == []
    assert listed("20261120-100002*") == [run_id(2)]
    assert listed("*0*") == [], "a pattern that begins with no year is one of names"
    os.mkdir(f"{runs}/{recent}")
    assert listed("--since", "2d") == [recent]
    assert listed("--since", "2026-11-19") == [recent, run_id(3, "eval"), run_id(2), run_id(1, "lr-1")]
    assert listed("--since", "2026-11-19", "-s", "succeeded", "lr*", "-n", "1") == [run_id(1, "lr-1")]
    assert listed("--since", "2026-11-19", "--until", "2d") == [run_id(3, "eval"), run_id(2), run_id(1, "lr-1")]
    assert listed("--since", "yesterday", "--until", "yesterday") == []
    days = {day: listed("--until", day) for day in ("2026-11-19", "2026-11-20")}
    assert days == {"2026-11-19": [], "2026-11-20": [run_id(3, "eval"), run_id(2), run_id(1, "lr-1")]}, "with that day"
    assert "began before the end of 2026-11-19" in holdfast("ls", "--until", "2026-11-19").err
    none = holdfast("ls", "digits", "--since", "1d", "-s", "failed", "-s", "lost")
    assert "none of 4 runs is failed or lost and is called digits and began since 1d" in none.err
    more = holdfast("ls", "-n", "1", "--since", "2026-11-19")
    assert "3 older runs are not shown" in more.err


def test_a_name_that_no_run_has_is_an_error_not_an_empty_list(holdfast: Command, runs: str) -> None:
    make_run(runs, run_id(1), ended())
    done = holdfast("ls", "digit")
    assert (done.code, done.out) == (66, "")
    assert "of 1 run none is called 'digit'" in done.err
    assert "did you mean digits?" in done.err
    assert "holdfast ls --on gpu1 digits" in holdfast("ls", "gpu1:digits").err
    for words, said in (
        (("--since", "soon"), "is no time"),
        (("--since", "7"), "of what"),
        (("--since", "2126-01-01"), "comes yet\n  name a time that has passed"),
        (("--until", "later"), "--until: 'later' is no time\n"),
        (("--using", "/", "--since", "7d"), "--using is about all live runs"),
    ):
        done = holdfast("ls", *words)
        assert (done.code, said in done.err) == (64, True), done


def test_a_directory_of_runs_that_cannot_be_read_is_not_empty(holdfast: Command, tmp_path: Path) -> None:
    closed = tmp_path / "file"
    closed.write_text("")
    for words, env in ((("--runs", str(closed)), {}), ((), {"HOLDFAST_RUNS": str(closed)})):
        done = holdfast("ls", *words, env=env)
        assert (done.code, done.out) == (74, "")
        assert f"the runs directory {closed} cannot be read: Not a directory" in done.err
    done = holdfast("show", "digits", env={"HOLDFAST_RUNS": str(closed)})
    assert done.code == 66
    assert f"{closed} cannot be read: Not a directory" in done.err
