"""The entry ``stand``: a supervisor that is a place's own process."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.control.run_lock import TakenUp, hold_run_lock
from holdfast.agent.view.observe import observe_run
from holdfast.faults.box import list_descendants
from holdfast.host.process import processes
from holdfast.model import wire
from holdfast.model.identity import BoxIdentity
from holdfast.model.job import Retries
from tests import other_kernels
from tests.agent.driving import Driven, job, timeouts
from tests.agent.standing import AS_INIT, SAVES, STEPD, Standing, Stands, hears, read_exit
from tests.waiting import LONG_S, wait_until

pytestmark = pytest.mark.process

BUSY, NO_RUN, USAGE = 75, 66, 64
TERM_PREEMPTS = ("--term", "preemption")


# --- the code of the outcome -----------------------------------------------------------------------------------------

OUTCOMES: tuple[tuple[tuple[str, ...], dict[str, Any], int, str], ...] = (
    (("true",), {}, 0, "succeeded"),
    (("sh", "-c", "exit 3"), {}, 3, "failed"),
    (("sh", "-c", "kill -9 $$"), {}, 137, "failed"),
    (("sleep", "60"), {"timeouts": timeouts(run=0.2), "grace_s": 1.0}, 124, "timed_out"),
    (("true",), {"inputs": ("/nowhere/at/all",)}, 78, "failed"),
)
SIGNALS = (
    (signal.SIGTERM, TERM_PREEMPTS, 143),
    (signal.SIGTERM, (), 130),
    (signal.SIGUSR1, (), 143),
    (signal.SIGUSR2, (), 143),
    (signal.SIGINT, TERM_PREEMPTS, 130),
    (signal.SIGHUP, TERM_PREEMPTS, 130),
    (signal.SIGQUIT, TERM_PREEMPTS, 130),
)


@pytest.mark.slow
@pytest.mark.requirement("PROC-25")
def test_it_exits_with_the_code_of_the_outcome(stands: Stands) -> None:
    standings = [stands(stands.order(*command, **fields)) for command, fields, _, _ in OUTCOMES]
    for standing, (_, _, code, outcome) in zip(standings, OUTCOMES, strict=True):
        assert standing.end() == code, standing.said()
        assert (read_exit(standing.run)["exit_code"], read_exit(standing.run)["outcome"]) == (code, outcome)
        assert f"exit code {code}" in standing.said()[1].splitlines()[-1]


@pytest.mark.slow
@pytest.mark.requirement("PROC-04", "SLM-02")
def test_each_signal_of_a_place_asks_for_a_stop_and_the_job_saves(stands: Stands) -> None:
    """Seen: USR1 killed the supervisor, and Slurm's linuxproc left the job on cards that others were given."""
    standings = [stands(stands.order(*SAVES), *words) for _, words, _ in SIGNALS]
    for standing, (number, _, _) in zip(standings, SIGNALS, strict=True):
        standing.ready()
        standing.signal(number)
    for standing, (_, _, code) in zip(standings, SIGNALS, strict=True):
        assert standing.end() == code, standing.said()
        assert read_exit(standing.run)["outcome"] == {143: "preempted", 130: "stopped"}[code]
        assert Path(standing.run.run_dir, wire.CHECKPOINTS, "saved").read_text() == "7\n"
        standing.run.assert_gone()


SAVES_SLOWLY = """
trap 'while [ ! -e "$HOLDFAST_RUN_DIR/enough" ]; do sleep 0.02; done; exit 0' TERM
echo ready
while :; do sleep 0.02; done
"""


@pytest.mark.slow
@pytest.mark.requirement("PROC-04", "SLM-02")
@pytest.mark.parametrize(("number", "code", "outcome"), [("TERM", 143, "preempted"), ("INT", 130, "stopped")])
def test_a_term_after_a_warning_is_the_end_that_was_warned_of_and_another_signal_is_a_stop(
    stands: Stands, number: str, code: int, outcome: str
) -> None:
    standing = stands(stands.order("sh", "-c", SAVES_SLOWLY))
    standing.ready()
    standing.signal(signal.SIGUSR1)
    wait_until(lambda: len(standing.run.events("stop_requested")) == 1, what="the warning is heard")
    standing.signal(signal.Signals[f"SIG{number}"])
    wait_until(lambda: len(standing.run.events("stop_requested")) == 2, what=f"{number} is heard")
    Path(standing.run.run_dir, "enough").touch()
    assert standing.end() == code, standing.said()
    assert read_exit(standing.run)["outcome"] == outcome


COUNTS = """
import signal, time
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
print("ready", flush=True)
while not heard:
    time.sleep(0.02)
time.sleep(0.4)
print("heard", len(heard), flush=True)
"""
"""A job that counts how often it is asked to leave; a second TERM comes at once, or never."""


@pytest.mark.slow
def test_of_a_place_that_asks_all_processes_the_job_hears_once(stands: Stands) -> None:
    """Seen with Slurm's linuxproc: a second TERM, to a handler for which it means "at once", and to dying Pythons."""
    alone, together = (stands(stands.order(sys.executable, "-c", COUNTS), *TERM_PREEMPTS) for _ in range(2))
    for standing in (alone, together):
        standing.ready()
    alone.signal(signal.SIGTERM)
    for pid in (*list_descendants(together.pid()), together.pid()):
        os.kill(pid, signal.SIGTERM)
    for standing, by in ((alone, None), (together, "the place")):
        assert standing.end() == 143, standing.said()
        assert standing.run.output() == b"ready\nheard 1\n"
        (sent,) = standing.run.events("term_sent")
        assert sent["data"].get("by") == by


@pytest.mark.slow
def test_what_the_job_writes_comes_out_and_a_closed_reader_holds_up_nobody(stands: Stands) -> None:
    standing = stands(stands.order("sh", "-c", "echo one; echo two >&2; printf three"))
    assert standing.end() == 0
    assert standing.said()[0] == "one\ntwo\nthree"
    standing = stands(stands.order("sh", "-c", "echo ready; yes | head -c 1000000"))
    assert standing.process.stdout is not None
    standing.process.stdout.close()
    assert standing.end() == 0


def test_with_json_there_is_one_object(stands: Stands) -> None:
    standing = stands(stands.order("sh", "-c", "echo one; exit 4"), "--json")
    assert standing.end() == 4
    found = json.loads(standing.said()[0])
    assert (found["schema"], found["exit_code"], found["condition"]) == (1, 4, "failed")


@pytest.mark.parametrize(
    "words",
    [
        ("--run",),
        ("--order", "a", "--run", "b"),
        ("--run", "/x", "--term", "perhaps"),
        ("--run", "/x", "--grace-limit", "nan"),
        ("--run", "/x", "--next", "two words"),
        ("--run", "/x", "--what"),
    ],
)
def test_words_that_it_does_not_know_are_refused(words: tuple[str, ...]) -> None:
    from holdfast.agent.place.foreground.stand import read_words
    from holdfast.model.errors import UsageError

    with pytest.raises(UsageError):
        read_words(list(words))


def test_no_run_and_no_order_are_told(stands: Stands, tmp_path: Path) -> None:
    order = stands.order("true")
    standing = stands.go_on(order[1])
    assert standing.end() == NO_RUN, standing.said()
    standing = stands((str(tmp_path / "absent"), order[1]))
    assert standing.end() == USAGE, standing.said()


def changed(statements: str) -> tuple[str, ...]:
    """Before what it is followed by, an isolated Python's entry: the same in a process where these have been run."""
    text = f"""
import runpy, sys
from holdfast.agent.place.foreground import predecessor, stand
{statements}
del sys.argv[:4]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    return (sys.executable, "-c", text)


def test_a_run_that_is_removed_while_it_waits_is_told(stands: Stands) -> None:
    order = stands.order("true")
    assert stands(order).end() == 0
    run = order[1]
    lock = f"{run.run_dir}/{wire.RUN_LOCK}"
    with hold_run_lock(run.run_dir, what="remove it"):
        waiting = stands.go_on(run, "--next", "requeue")
        opened = f"/proc/{waiting.process.pid}/fd"
        wait_until(lambda: lock in {os.path.realpath(f"{opened}/{fd}") for fd in os.listdir(opened)}, what="it waits")
        os.rename(run.run_dir, f"{run.run_dir}-removed")
        assert waiting.end() == NO_RUN, waiting.said()
    assert waiting.said()[1].startswith(f"holdfast: {run.run_dir} has been removed\n")


def test_a_refusal_of_the_system_is_not_the_code_of_the_job(stands: Stands) -> None:
    """Seen: 1 and a traceback where no process was to be had, as of a job that failed."""
    order = stands.order("true")
    full = 'def stand.Relay(*_, **__): raise BlockingIOError(11, "Resource temporarily unavailable")'
    refused = stands(order, prefix=changed(full.replace("stand.Relay", "refuse", 1) + "\nstand.Relay = refuse"))
    assert refused.end() == 74, refused.said()
    assert "temporarily unavailable" in refused.said()[1].splitlines()[0]
    assert stands(order).end() == 0


# --- process 1 -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.requirement("KUB-06", "KUB-14")
def test_as_process_1_a_term_leads_to_a_saved_checkpoint_and_an_exit_record(stands: Stands) -> None:
    """Seen: TERM to `holdfast run` as process 1 was "detached", and the kernel killed the container at once."""
    standing = stands(stands.order(*SAVES), *TERM_PREEMPTS, prefix=AS_INIT)
    standing.ready()
    standing.signal(signal.SIGTERM)
    assert standing.end() == 143, standing.said()
    assert read_exit(standing.run)["outcome"] == "preempted"
    assert os.path.exists(f"{standing.run.run_dir}/{wire.CHECKPOINTS}/saved")


@pytest.mark.slow
def test_as_process_1_no_signal_is_lost_from_the_first_instruction_on(stands: Stands) -> None:
    """Sent the moment it is not dropped by the kernel any more; whoever starts it may hold signals back before that."""
    standing = stands(stands.order(*SAVES), prefix=AS_INIT)
    pid = standing.pid()
    wait_until(lambda: hears(pid), what="it holds signals back")
    assert not os.path.exists(standing.run.run_dir)
    standing.signal(signal.SIGTERM)
    assert standing.end() == 130, standing.said()
    assert read_exit(standing.run)["outcome"] == "stopped"
    early = stands(stands.order(*SAVES), held_back=True)
    early.signal(signal.SIGUSR1)
    assert early.end() == 143, early.said()
    assert read_exit(early.run)["outcome"] == "preempted"


@pytest.mark.slow
@pytest.mark.requirement("PROC-10")
def test_as_process_1_it_reaps_what_is_left_to_it(stands: Stands) -> None:
    zombies = "for i in $(seq 50); do (setsid sh -c 'sleep 0.05 & exit 0' &); done; sleep 0.4; "
    count = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l"
    command = f"{zombies}i=0; while [ $({count}) -gt 0 ] && [ $i -lt 100 ]; do i=$((i+1)); sleep 0.05; done; {count}"
    standing = stands(stands.order("sh", "-c", command, containment="process_group"), prefix=AS_INIT)
    assert standing.end() == 0, standing.said()
    assert standing.said()[0].strip() == "0"


# --- the place's time ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.requirement("PROC-07")
def test_the_exit_record_is_there_before_the_place_kills(stands: Stands) -> None:
    """A job that does not leave gets the place's time less what the records take; what it had asked for is more."""
    order = stands.order(*job("ignore_term"), grace_s=60.0, artifacts=("nothing",))
    standing = stands(order, *TERM_PREEMPTS, "--grace-limit", "8")
    standing.ready()
    standing.signal(signal.SIGTERM)
    assert standing.end(LONG_S) == 143, standing.said()
    told = standing.run.events("foreground")[0]["data"]
    assert (told["grace_limit_s"], told["grace_max_s"]) == (8.0, 4.0)
    assert standing.run.events("stopping")[0]["data"]["grace_s"] == 4.0
    assert "kills 8 s after its signal" in standing.said()[1]
    at = {event["event"]: event["monotonic_s"] for event in standing.run.events()}
    # On a machine that is busy with nothing else it is less than the 8 s; what the job had asked for it never gets.
    assert at["exit_recorded"] - at["stop_requested"] < 60.0


# --- one at a time ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_of_many_that_are_started_at_once_one_supervises(stands: Stands) -> None:
    order = stands.order("sh", "-c", 'echo x >> "$HOLDFAST_ARTIFACT_DIR/ran"; echo ready; sleep 1')
    standings = [stands(order) for _ in range(6)]
    codes = sorted(standing.end() for standing in standings)
    # Who comes when it is over is told its code.
    assert codes.count(0) >= 1
    assert set(codes) <= {0, BUSY}, [standing.said() for standing in standings]
    assert Path(order[1].run_dir, wire.ARTIFACTS, "ran").read_text() == "x\n"
    assert observe_run(order[1].run_dir).attempts == (1,)


@pytest.mark.slow
def test_a_run_that_is_over_is_told_and_not_run_again(stands: Stands) -> None:
    order = stands.order("sh", "-c", "exit 3")
    assert stands(order).end() == 3
    again = stands(order)
    assert again.end() == 3
    assert "has ended" in again.said()[1]
    assert observe_run(order[1].run_dir).attempts == (1,)


@pytest.mark.slow
def test_another_order_of_the_same_id_is_refused(stands: Stands, tmp_path: Path) -> None:
    order, other = stands.order("true"), stands.order("false")
    assert stands(order).end() == 0
    content = json.loads(Path(other[0]).read_text())
    content["run_id"] = order[1].run_id
    Path(other[0]).write_text(json.dumps(content))
    assert stands(other).end() == 73


def _kill(standing: Standing) -> None:
    os.kill(standing.pid(), signal.SIGKILL)
    standing.end()


@pytest.mark.requirement("PROC-15", "PROC-23")
def test_after_a_kill_the_next_attempt_begins_once_the_job_is_gone(stands: Stands) -> None:
    order = stands.order(*SAVES)
    first = stands(order)
    first.ready()
    leader = order[1].running().job.process
    _kill(first)
    second = stands(order, "--next", "requeue")
    run = order[1]
    wait_until(lambda: observe_run(run.run_dir).attempts == (1, 2), what=f"attempt 2 is there {second.process}")
    assert not processes.is_alive(leader), "two of its attempts would write at once"
    # It left with 0, because its keeper asked it to: that is no success, after which nothing would follow.
    assert read_exit(run)["outcome"] == "lost"
    run.attempt = 2
    second.ready()
    assert run.read(wire.MANIFEST)["reason"] == "requeue"
    second.signal(signal.SIGUSR1)
    assert second.end() == 143, second.said()
    third = stands(order, "--next", "requeue")
    run.attempt = 3
    third.ready()
    third.signal(signal.SIGINT)
    assert third.end() == 130


@pytest.mark.slow
def test_the_next_attempt_waits_for_the_one_before_and_a_signal_ends_the_wait(stands: Stands) -> None:
    order = stands.order(*SAVES)
    first = stands(order)
    first.ready()
    waiting = stands(order, "--next", "requeue", *TERM_PREEMPTS)
    wait_until(lambda: hears(waiting.process.pid), what="it listens")
    waiting.signal(signal.SIGTERM)
    assert waiting.end() == 143, waiting.said()
    follower = stands(order, "--next", "requeue")
    first.signal(signal.SIGUSR1)
    assert first.end() == 143
    run = order[1]
    wait_until(lambda: observe_run(run.run_dir).attempts == (1, 2), what="attempt 2 is there")
    run.attempt = 2
    follower.ready()
    follower.signal(signal.SIGTERM)
    assert follower.end() == 130, follower.said()


@pytest.mark.slow
def test_after_a_success_or_a_stop_that_somebody_asked_for_no_other_attempt_follows(stands: Stands) -> None:
    order = stands.order("true")
    assert stands(order).end() == 0
    assert stands(order, "--next", "requeue").end() == 0
    assert observe_run(order[1].run_dir).attempts == (1,)
    order = stands.order(*SAVES)
    standing = stands(order)
    standing.ready()
    order[1].ask()
    assert standing.end() == 130
    again = stands(order, "--next", "requeue")
    assert again.end() == 130
    assert "somebody wants it stopped" in again.said()[1]
    assert observe_run(order[1].run_dir).attempts == (1,)


@pytest.mark.slow
def test_an_attempt_that_follows_by_itself_is_supervised_by_the_same_process(stands: Stands) -> None:
    """As process 1 nobody else could: with it everything ends."""
    blip = (
        'echo x >> "$HOLDFAST_ARTIFACT_DIR/tries"; test $(wc -l < "$HOLDFAST_ARTIFACT_DIR/tries") -gt 1 && exit 0; '
        "echo 'wandb.errors.CommError: Run initialization has timed out after 90.0 sec.' >&2; exit 1"
    )
    standing = stands(stands.order("sh", "-c", blip, retries=Retries(max=1, wait_s=0.01)), prefix=AS_INIT)
    assert standing.end() == 0, standing.said()
    assert observe_run(standing.run.run_dir).attempts == (1, 2)
    standing.run.attempt = 2
    assert standing.run.state().supervisor is not None


# --- another place ---------------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(stands: Stands) -> tuple[tuple[str, Driven], Standing]:
    """A run of a namespace of its own, as of a pod; it lives."""
    order = stands.order(*SAVES)
    standing = stands(order, prefix=AS_INIT)
    standing.ready()
    return order, standing


@pytest.mark.slow
def test_of_another_place_nothing_is_begun_without_proof(
    stands: Stands, elsewhere: tuple[tuple[str, Driven], Standing]
) -> None:
    order, first = elsewhere
    busy = stands(order)
    assert busy.end() == BUSY, busy.said()
    assert "one process at a time" in busy.said()[1]
    # Even what the caller knows does not weigh against a lock that is held.
    waiting = stands(order, "--next", "requeue", "--evidence", "the pod was deleted")
    wait_until(lambda: hears(waiting.process.pid), what="it listens")
    first.signal(signal.SIGUSR1)
    assert first.end() == 143
    run = order[1]
    run.attempt = 2
    waiting.ready()
    waiting.signal(signal.SIGTERM)
    assert waiting.end() == 130


def test_a_record_that_cannot_be_written_is_told_at_the_place(
    stands: Stands, elsewhere: tuple[tuple[str, Driven], Standing]
) -> None:
    order, first = elsewhere
    _kill(first)
    os.mkdir(order[1].path(wire.GONE))  # as a disk that takes nothing
    second = stands(order, "--next", "requeue", "--evidence", "the pod was deleted")
    assert second.end() == 74, second.said()
    assert wire.GONE in second.said()[1].splitlines()[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [("--evidence", "the pod was deleted"), pytest.param((), marks=[pytest.mark.soak, pytest.mark.timeout(120)])],
)
def test_a_place_that_was_killed_is_followed_on_proof(
    stands: Stands, elsewhere: tuple[tuple[str, Driven], Standing], words: tuple[str, ...]
) -> None:
    """What the caller knows, else a lock on this box's own disk that nobody holds any more."""
    order, first = elsewhere
    _kill(first)
    without = stands(order)
    assert without.end() == BUSY, without.said()
    second = stands(order, "--next", "requeue", *words)
    run = order[1]
    wait_until(lambda: observe_run(run.run_dir).attempts == (1, 2), what="attempt 2 is there")
    assert read_exit(run)["outcome"] == "lost"
    assert (words[-1] if words else "lock") in read_exit(run)["evidence"]
    run.attempt = 2
    second.ready()
    second.signal(signal.SIGTERM)
    assert second.end() == 130, second.said()


def test_what_the_box_lost_when_it_was_restarted_is_settled_as_lost(stands: Stands) -> None:
    machine = {"HOLDFAST_MACHINE_ID": "0" * 32}
    order = stands.order(*SAVES)
    first = stands(order, environ={**machine, "HOLDFAST_BOOT_ID": "the boot before"})
    first.ready()
    _kill(first)
    order[1].assert_gone()
    after = stands(order, environ={**machine, "HOLDFAST_BOOT_ID": "this boot"})
    assert after.end() == 71, after.said()
    assert read_exit(order[1])["outcome"] == "lost"


# --- where locks prove nothing ---------------------------------------------------------------------------------------

WITHOUT_LOCKS = (sys.executable, other_kernels.__file__, "flock-enolck")


@pytest.mark.slow
def test_without_locks_one_supervises_and_one_begins_the_next_attempt(stands: Stands) -> None:
    """What can be made only once decides: two supervisors are never at one attempt, nor two attempts at work."""
    order = stands.order(*SAVES)
    both = [stands(order, prefix=WITHOUT_LOCKS) for _ in range(2)]
    wait_until(lambda: any(one.process.poll() is not None for one in both), what="one of them has left")
    first, other = sorted(both, key=lambda one: one.process.poll() is not None)
    assert other.end() == BUSY, other.said()
    first.ready()
    run = order[1]
    assert run.state().unlocked
    _kill(first)
    both = [stands(order, "--next", "requeue", prefix=WITHOUT_LOCKS) for _ in range(2)]
    run.attempt = 2
    wait_until(lambda: os.path.exists(run.path(wire.OUTPUT)), what="attempt 2 is at work")
    both[0].ready()
    supervisor = run.supervisor().pid
    assert supervisor in {one.process.pid for one in both}
    for one in both:
        one.signal(signal.SIGUSR1)
    assert [one.end() for one in both] == [143, 143]
    assert observe_run(run.run_dir).attempts == (1, 2)
    assert len(run.events("supervisor_started")) == 1


@pytest.mark.slow
def test_without_locks_evidence_is_about_the_attempt_that_was_there_when_it_was_given(stands: Stands) -> None:
    """Two pods take the place of one that was deleted, with the same words: each would say so of the other, too."""
    boxes = [{"HOLDFAST_MACHINE_ID": f"{n}" * 32, "HOLDFAST_BOOT_ID": f"boot {n}"} for n in range(3)]
    order = stands.order(*SAVES, grace_s=0.1)
    run = order[1]
    first = stands(order, prefix=WITHOUT_LOCKS, environ=boxes[0])
    first.ready()
    _kill(first)
    run.assert_gone()
    # The second pod has looked, and somebody else was about to take the first attempt up.
    taken = f"{run.path(wire.TAKEN)}.{run.state().version}.0"
    Path(taken).write_bytes(wire.to_bytes(TakenUp(run.supervisor(), BoxIdentity("h", "9" * 32, "boot 9"))))
    words = ("--next", "requeue", "--evidence", "the pod was deleted")
    hasty = changed("predecessor.WAIT_BEYOND_GRACE_S = 1.0")
    late = stands(order, *words, prefix=(*WITHOUT_LOCKS, *hasty), environ=boxes[2])
    wait_until(lambda: os.path.exists(run.path(wire.GONE)), what="it has looked")
    os.kill(late.process.pid, signal.SIGSTOP)
    os.unlink(taken)
    second = stands(order, *words, prefix=WITHOUT_LOCKS, environ=boxes[1])
    wait_until(lambda: observe_run(run.run_dir).attempts == (1, 2), what="attempt 2 is there")
    run.attempt = 2
    second.ready()
    os.kill(late.process.pid, signal.SIGCONT)
    assert late.end() == BUSY, late.said()
    assert observe_run(run.run_dir).attempts == (1, 2)
    second.signal(signal.SIGTERM)
    assert second.end() == 130, second.said()


@pytest.mark.slow
def test_what_a_scheduler_starts_again_is_proof_that_it_had_ended(stands: Stands) -> None:
    """The same job of Slurm, begun again on another node: the one before it is over, whatever its records say."""
    order = stands.order(*SAVES)
    stepd = (sys.executable, "-I", "-S", "-c", STEPD)
    machine = {"HOLDFAST_MACHINE_ID": "0" * 32, "SLURM_JOB_ID": "7"}
    first = stands(order, prefix=stepd, environ={**machine, "HOLDFAST_BOOT_ID": "one node"})
    first.ready()
    assert run_native(order[1]) == ("slurm:7", 0)
    run = order[1]
    os.kill(run.supervisor().pid, signal.SIGKILL)
    first.end()
    run.assert_gone()
    elsewhere = {"HOLDFAST_MACHINE_ID": "1" * 32, "HOLDFAST_BOOT_ID": "another node"}
    other = stands(order, prefix=stepd, environ={**elsewhere, "SLURM_JOB_ID": "8", "SLURM_RESTART_COUNT": "1"})
    assert other.end() == BUSY, other.said()
    second = stands(
        order,
        *("--next", "requeue"),
        prefix=stepd,
        environ={**elsewhere, "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"},
    )
    wait_until(lambda: observe_run(run.run_dir).attempts == (1, 2), what="attempt 2 is there")
    assert "Slurm has ended job 7 and started it again (restart 1)" in read_exit(run)["evidence"]
    run.attempt = 2
    second.ready()
    assert run_native(run) == ("slurm:7", 1)
    os.kill(run.supervisor().pid, signal.SIGUSR1)
    assert second.end() == 143


def run_native(run: Driven) -> tuple[str, int]:
    found = run.read(wire.NATIVE)
    return found["job"], found["restarts"]
