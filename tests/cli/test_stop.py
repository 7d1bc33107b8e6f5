"""``holdfast stop``: asked once, waited for, told rung by rung; harmless when there is nothing to stop."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.control import stop_several
from holdfast.agent.control.stop_several import StopWish
from holdfast.host.process.pidfd import send_signal
from holdfast.host.process.processes import identify_self
from holdfast.model import wire
from tests.cli.conftest import ENTRY
from tests.cli.live import SLEEPER, STUBBORN, live_run
from tests.cli.queues import say
from tests.rundirs import dead_process, ended, finalizing, living_process, make_run, running
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


@pytest.mark.requirement("PROC-06", "B-50")
def test_a_live_run_is_stopped_and_the_rungs_are_told(holdfast: Command) -> None:
    with live_run(holdfast, "--name", "gentle") as run:
        done = holdfast("stop", "gentle", "--reason", "enough")
        assert done.code == 0
        assert "TERM sent" in done.out
        assert "KILL sent" not in done.out
        assert "stopped (exit 130)" in done.out
        view = run.look()
        assert (view.condition, view.exit_code, view.over) == ("stopped", 130, True)
        assert "enough" in view.note


@pytest.mark.slow
def test_stop_is_idempotent(holdfast: Command) -> None:
    with live_run(holdfast) as run:
        assert holdfast("stop", run.run_id).code == 0
        again = holdfast("stop", run.run_id)
        assert again.code == 0
        assert "already ended" in again.out
        assert holdfast("stop", "--json", run.run_id).json()["already_ended"] is True


@pytest.mark.slow
@pytest.mark.requirement("PROC-06")
def test_PROC_06_a_job_that_ignores_TERM_is_killed_after_its_grace(holdfast: Command) -> None:
    with live_run(holdfast, "--grace", "300ms", job=STUBBORN) as run:
        done = holdfast("stop", "--json", run.run_id)
        value = done.json()
        assert value["exit_code"] == done.code == 0
        rungs = [event["event"] for event in value["ladder"]]
        assert [rung for rung in rungs if rung in ("term_sent", "timer", "kill_sent")] == [
            "term_sent",
            "timer",
            "kill_sent",
        ]


@pytest.mark.slow
def test_a_wait_that_is_over_leaves_the_run_stopping(holdfast: Command) -> None:
    with live_run(holdfast, "--grace", "10m", job=STUBBORN) as run:
        done = holdfast("stop", "--wait", "100ms", run.run_id)
        assert done.code == 124
        assert "goes on stopping without us" in done.err
        run.wait_condition("stopping")
        now = holdfast("stop", "--now", run.run_id)
        assert now.code == 0
        assert "KILL sent" in now.out


@pytest.mark.requirement("PROC-15")
def test_a_run_without_a_supervisor_is_stopped_by_a_new_one(holdfast: Command) -> None:
    with live_run(holdfast) as run:
        run.kill_supervisor()
        assert run.look().condition == "running, unsupervised"
        done = holdfast("stop", run.run_id)
        assert done.code == 0
        assert run.look().condition == "stopped"


@pytest.mark.slow
def test_a_run_without_a_readable_job_is_refused_at_once_and_goes_on(holdfast: Command) -> None:
    with live_run(holdfast) as run:
        run.kill_supervisor()
        record = Path(run.run_dir, "run.json")
        kept = record.read_bytes()
        record.write_bytes(kept[: len(kept) // 2])
        for words in (("stop",), ("stop", "--now"), ("adopt",)):
            done = holdfast(*words, run.run_id)
            assert (done.code, "run.json" in done.err, "not valid JSON" in done.err) == (74, True, True), done
        assert run.look().condition == "running, unsupervised"
        record.write_bytes(kept)
        # What was asked for meanwhile is kept.
        assert holdfast("adopt", run.run_id).code == 0
        run.wait_condition("stopped")


@pytest.mark.slow
@pytest.mark.requirement("PROC-14")
def test_a_stop_whose_supervisor_dies_after_it_was_asked_is_carried_out_by_the_next(holdfast: Command) -> None:
    with live_run(holdfast, "--grace", "2s", job=STUBBORN) as run:
        state = run.look().state
        assert state is not None
        assert state.supervisor is not None
        send_signal(state.supervisor, signal.SIGSTOP)
        with subprocess.Popen(
            [*ENTRY, "stop", "--wait", "60s", run.run_id], stdout=subprocess.PIPE, text=True
        ) as stopping:
            wait_until(lambda: run.look().desired is not None, what="the stop is asked for")
            run.kill_supervisor()
            assert stopping.wait(LIMIT_S) == 0
        assert run.look().condition == "stopped"


@pytest.mark.slow
def test_a_stop_that_no_supervisor_takes_up_is_said_to_be_none(
    holdfast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with live_run(holdfast) as run:
        run.kill_supervisor()
        monkeypatch.setattr("holdfast.agent.launch.start_supervisor", lambda *_, **__: None)
        done = say("stop", "--wait", "100ms", run.run_id)
        assert done.code == 124
        assert "no supervisor is seen to carry it out" in done.err


@pytest.mark.slow
@pytest.mark.requirement("OBS-11")
@pytest.mark.parametrize(("arguments", "job"), [((), SLEEPER), (("--now",), STUBBORN)])
def test_a_run_directory_that_takes_no_wish_does_not_keep_the_run_alive(
    holdfast: Command, arguments: tuple[str, ...], job: tuple[str, ...]
) -> None:
    with live_run(holdfast, "--grace", "5m", job=job) as run:
        # Nothing can be renamed over a directory: as good as a full disk, and it needs no mount.
        os.makedirs(f"{run.run_dir}/desired.json/in-the-way")
        done = holdfast("stop", *arguments, run.run_id)
        assert done.code == 0, done
        assert run.look().condition == "stopped"


@pytest.mark.requirement("PROC-08")
def test_PROC_08_an_old_run_whose_pid_is_used_again_harms_nobody(holdfast: Command, tmp_path: Path) -> None:
    """The recorded pid is this test's own, with another start time: stop must not touch it."""
    from holdfast.model.record import replace

    stranger = replace(living_process(os.getpid()), start_ticks=7)
    root = os.environ["HOLDFAST_RUNS"]
    run_dir = make_run(root, state=running(job=stranger, keeper=stranger), supervisor=stranger)
    done = holdfast("stop", run_dir)
    assert done.code == 0
    assert "already ended" in done.out
    assert "lost" in done.out


@pytest.mark.slow
@pytest.mark.requirement("PROC-16", "B-41")
def test_PROC_16_what_survives_KILL_is_named_with_its_wait_channel(holdfast: Command) -> None:
    stuck = ("pid 4242 in uninterruptible sleep (D) in nfs_wait",)
    run_dir = make_run(os.environ["HOLDFAST_RUNS"], state=finalizing(stuck=stuck), supervisor=identify_self())
    done = holdfast("stop", "--wait", "200ms", run_dir)
    assert done.code == 76
    assert "nfs_wait" in done.out
    assert "lease stays held" in done.err
    assert holdfast("stop", "--wait", "0", "--json", run_dir).json()["survivors"] == list(stuck)


def test_several_runs_are_stopped_in_one_go(isolated_environment: dict[str, str]) -> None:
    root = isolated_environment["HOLDFAST_RUNS"]
    make_run(root, state=ended())
    make_run(root, "20261120-100500-probe-0a1c", state=ended())
    done = say("stop", "digits", "probe", "digits")
    assert (done.code, done.out.count("had already ended")) == (0, 2)
    found = json.loads(say("stop", "--json", "digits", "probe").out)
    assert ([one["condition"] for one in found["runs"]], found["exit_code"]) == (["succeeded"] * 2, 0)
    assert say("stop", "digits", "nosuch").code == 66


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="the administrator is root")
def test_root_stops_a_run_of_another_account_with_a_reason_that_is_kept(
    holdfast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with live_run(holdfast) as run:
        # To the verb it is another account's; all else is as it is.
        monkeypatch.setattr("holdfast.cli.named_run.is_own", lambda _: False)
        monkeypatch.setattr("holdfast.cli.verbs.stop.is_own", lambda _: False)
        refused = say("stop", run.run_id)
        assert (refused.code, "no reason was given" in refused.err) == (77, True)
        done = say("stop", "--reason", "the box goes down", run.run_id)
        assert (done.code, "the box goes down" in done.out) == (0, True), done.err
        assert "the box goes down" in run.look().note


@pytest.mark.slow
@pytest.mark.requirement("ETIQ-02")
def test_ETIQ_02_another_accounts_run_is_refused_before_anything(holdfast: Command) -> None:
    run_dir = make_run(os.environ["HOLDFAST_RUNS"], state=running(), supervisor=dead_process())
    os.chown(run_dir, 65534, 65534)
    before = sorted(os.listdir(f"{run_dir}/attempts/1"))
    for verb in ("stop", "restart", "adopt"):
        done = holdfast(verb, run_dir)
        assert done.code == 77, verb
        assert "belongs to" in done.err
    assert sorted(os.listdir(f"{run_dir}/attempts/1")) == before


@pytest.mark.slow
def test_a_run_of_another_host_is_not_acted_on(holdfast: Command) -> None:
    root = os.environ["HOLDFAST_RUNS"]
    run_dir = make_run(root, state=running(), supervisor=dead_process(), host="otherbox")
    for verb in ("stop", "restart", "adopt"):
        done = holdfast(verb, run_dir)
        assert done.code == 74
        assert "ssh otherbox" in done.err


def test_a_corrupt_state_is_an_error_that_names_the_file(holdfast: Command) -> None:
    run_dir = make_run(os.environ["HOLDFAST_RUNS"], state=running(), supervisor=dead_process())
    with open(f"{run_dir}/attempts/1/state.json", "w") as file:
        file.write("{")
    done = holdfast("stop", run_dir)
    assert done.code == 74
    assert f"{run_dir}/attempts/1/state.json" in done.err


@pytest.mark.parametrize("wait", ["soon", "-1", ""])
def test_a_bad_wait_is_a_usage_error(holdfast: Command, wait: str) -> None:
    run_dir = make_run(os.environ["HOLDFAST_RUNS"], state=ended())
    done = holdfast("stop", f"--wait={wait}", run_dir)
    assert done.code == 64
    assert "--wait" in done.err


def test_an_interrupt_ends_the_waiting_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    never = Event()

    def stop(run_dir: str, **_: object) -> None:
        if run_dir == "first":
            raise KeyboardInterrupt
        never.wait()

    monkeypatch.setattr(stop_several, "stop_run", stop)
    with pytest.raises(KeyboardInterrupt):
        stop_several.stop_together(["first", "second"], StopWish(False, "", None), tell=lambda _: None)
    never.set()


def test_of_several_each_gets_its_answer_beside_those_that_cannot_be_stopped() -> None:
    root = os.environ["HOLDFAST_RUNS"]
    make_run(root, "20261120-100000-good-0a1b", state=ended())
    torn = make_run(root, "20261120-100001-torn-0a1c", state=running(), supervisor=dead_process())
    with open(f"{torn}/attempts/1/state.json", "w", encoding="utf-8") as file:
        file.write("{")
    done = say("stop", "good", "nosuch", "torn")
    assert done.code == 74
    assert "good-0a1b had already ended" in done.out
    assert "no run answers to 'nosuch'" in done.err
    assert f"{torn}/attempts/1/state.json" in done.err
    value = json.loads(say("stop", "--json", "nosuch", "good", "good").out)
    assert ([one["run_id"] for one in value["runs"]], value["exit_code"]) == (["20261120-100000-good-0a1b"], 66)
    assert [(one["name"], one["code"], one["exit_code"]) for one in value["errors"]] == [("nosuch", "no_such_run", 66)]


@pytest.mark.skipif(os.geteuid() != 0, reason="acts on runs of another account")
def test_root_stops_the_run_of_another_account_with_its_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = 54321
    area = tmp_path / "leases"
    area.mkdir(mode=0o1777)
    monkeypatch.setenv("HOLDFAST_LEASE_DIR", str(area))
    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o755)
        run = make_run(home, state=running(), supervisor=identify_self())
        for directory, _, names in os.walk(home):
            for path in (directory, *(f"{directory}/{name}" for name in names)):
                os.chown(path, other if path != home else 0, -1)
        refused = say("stop", run)
        assert (refused.code, f'--reason "..." {run}' in refused.err) == (77, True)
        assert say("stop", "--reason", "too loud", "--wait", "0s", run).code == 124
        desired = f"{run}/{wire.DESIRED}"
        with open(desired, encoding="utf-8") as file:
            told = json.load(file)
        assert (os.stat(desired).st_uid, told["reason"], told["by"].split()[0]) == (other, "too loud", "root")


@pytest.mark.skipif(os.geteuid() != 0, reason="acts on runs of another account")
def test_root_that_may_not_act_as_another_account_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that gives its root no right to change accounts."""
    theirs = make_run(str(tmp_path), "20261120-100000-theirs-0a1b", state=running(), supervisor=identify_self())
    over = make_run(str(tmp_path), "20261120-100001-over-0a1c", state=ended())
    os.chown(theirs, 54321, -1)

    def refuse(_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "setgroups", refuse)
    done = say("stop", "--reason", "too loud", "--wait", "0s", theirs)
    assert (done.code, "root may not act as that account here: Operation not permitted" in done.err) == (77, True)
    both = say("stop", "--reason", "too loud", "--wait", "0s", theirs, over)
    assert both.code == 77
    assert "root may not act as that account" in both.err
    assert "over-0a1c had already ended" in both.out, "the other one has its answer"
