"""Leases from the first survey to the hand-over, through whole runs, on simulated cards and on a fake NVML."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.host.process import processes
from holdfast.model import wire
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import GpuOptions, IsolationLevel
from holdfast.model.record import replace
from holdfast.model.run import Outcome, RequestKind
from tests.agent.driving import Drive, Driven, job, timeouts
from tests.agent.standing import STEPD
from tests.agent.test_start import TWO_LEVELS
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from tests.fakes.nvml import FakeNvml

pytestmark = pytest.mark.process

QUICK = GpuOptions(idle_window_s=0.0)
ONE = {"gpus": GpuRequest(count=1), "gpu": QUICK}
ECHO = ("sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER"')


def simulated(count: int = 1) -> dict[str, str]:
    return {"HOLDFAST_SIMULATED_GPUS": str(count)}


def patient(seconds: float) -> dict[str, Any]:
    return {"gpus": GpuRequest(count=1), "gpu": GpuOptions(idle_window_s=0.0, wait_s=seconds)}


def records(drive: Drive) -> list[dict[str, Any]]:
    found = []
    for path in sorted(glob.glob(f"{drive.environ['HOLDFAST_LEASE_DIR']}/lease-*.json")):
        with open(path, "rb") as file:
            found.append(wire.parse_object(file.read(), path))
    return found


def assert_free(drive: Drive, cards: dict[str, str]) -> None:
    """The card can be had at once, and its lease leaves nothing."""
    probe = drive(*job("exit_with", 0), environ=cards, **ONE)
    assert probe.ended().outcome is Outcome.SUCCEEDED, probe.state().state
    assert records(drive) == []


@pytest.mark.requirement("LEASE-02", "POST-01")
@pytest.mark.parametrize("ending", ["success", "error", "kill", "stop", "exec", "timeout"])
def test_LEASE_02_POST_01_the_card_is_free_after_every_end(drive: Drive, ending: str) -> None:
    fields: dict[str, Any] = {**ONE, "environ": simulated()}
    if ending in ("success", "error"):
        run = drive(*job("exit_with", 0 if ending == "success" else 3), **fields)
    elif ending == "exec":
        run = drive("/no/such/program", **fields)
    elif ending == "timeout":
        run = drive(*job("stay"), timeouts=timeouts(run=0.2), **fields)
    else:
        run = drive(*job("stay"), **fields)
        state = run.ready()
        if ending == "kill":
            run.kill(state.job.process)
        else:
            run.ask(RequestKind.STOP_NOW)
    run.ended()
    assert records(drive) == []
    assert_free(drive, simulated())


@pytest.mark.requirement("LEASE-02", "LEASE-03")
@pytest.mark.parametrize("level", TWO_LEVELS)
def test_LEASE_03_a_card_stays_busy_while_anything_of_a_dead_supervisors_run_lives(
    drive: Drive, level: IsolationLevel
) -> None:
    run = drive(*job("stay"), environ=simulated(), containment=level, **ONE)
    state = run.ready()
    run.kill_supervisor()
    other = drive(*job("stay"), environ=simulated(), **ONE)
    end = other.ended()
    assert (end.outcome, end.exit_code) == (Outcome.FAILED, 75)
    assert end.refusal is not None
    assert run.run_id in end.refusal.message
    pids = {pid for busy in end.refusal.busy for pid in busy.pids}
    assert pids & {state.job.process.pid, state.keeper.pid}, "the survivor is named"
    run.kill(state.keeper)
    run.kill(state.job.process)
    assert_free(drive, simulated())


@pytest.mark.requirement("LEASE-03")
def test_LEASE_03_a_grandchild_that_hides_still_holds_the_card(drive: Drive) -> None:
    """Supervisor, keeper and leader are killed; a double-forked child with the marker lives on."""
    run = drive(*job("tree", "double_fork"), environ=simulated(), containment=IsolationLevel.SUBREAPER, **ONE)
    state = run.ready()
    (child,) = [process for process in run.marked() if process != state.job.process]
    run.kill_supervisor()
    run.kill(state.keeper)
    run.kill(state.job.process)
    other = drive(*job("stay"), environ=simulated(), **ONE)
    end = other.ended()
    assert end.exit_code == 75, end
    run.kill(child)
    assert_free(drive, simulated())


@pytest.mark.requirement("LEASE-04", "LEASE-08")
def test_LEASE_04_08_the_record_is_complete_and_follows_the_run(drive: Drive) -> None:
    run = drive(*job("stay"), environ=simulated(2), **ONE)
    state = run.ready()
    wait_until(lambda: [record["phase"] for record in records(drive)] == ["run"])
    (record,) = records(drive)
    assert record["run_id"] == run.run_id
    assert (record["uid"], record["host"]) == (os.geteuid(), os.uname().nodename)
    assert record["user"] == processes.user_name(os.geteuid())
    assert record["since"].endswith("Z")
    assert record["supervisor"]["pid"] == run.supervisor().pid
    assert {member["pid"] for member in record["members"]} == {state.keeper.pid, state.job.process.pid}
    assert record["command"].endswith("job.py stay")
    assert record["simulated"] is True
    assert record["devices"][0]["card_uuid"] == state.devices[0].card_uuid
    run.ask()
    run.ended()
    assert records(drive) == []


@pytest.mark.requirement("LEASE-07", "LEASE-08")
def test_LEASE_07_08_the_job_sees_its_cards_by_uuid(drive: Drive) -> None:
    run = drive(*ECHO, environ=simulated(4), gpus=GpuRequest(count=2), gpu=QUICK)
    assert run.ended().exit_code == 0
    visible, order = run.output().decode().split()
    devices = [device["card_uuid"] for device in run.read(wire.MANIFEST)["devices"]]
    assert visible.split(",") == devices
    assert len(devices) == 2
    assert order == "PCI_BUS_ID"


@pytest.mark.requirement("LEASE-07")
def test_LEASE_07_a_run_without_cards_sees_none(drive: Drive) -> None:
    run = drive("sh", "-c", 'echo "[$CUDA_VISIBLE_DEVICES]"', environ=simulated(2))
    run.ended()
    assert run.output() in (b"[]\n", b"[-1]\n"), "neither names a card"


@pytest.mark.slow
@pytest.mark.requirement("LEASE-07")
def test_LEASE_07_an_imposed_list_bounds_the_choice(drive: Drive) -> None:
    cards = {**simulated(4), "CUDA_VISIBLE_DEVICES": "2,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    first, second = (drive(*job("stay"), environ=cards, **ONE) for _ in range(2))
    taken = {first.ready().devices[0].index, second.ready().devices[0].index}
    assert taken == {2, 3}
    third = drive(*job("stay"), environ=cards, **ONE)
    assert third.ended().exit_code == 75, "cards 0 and 1 are free and not ours to take"
    for run in (first, second):
        run.ask(RequestKind.STOP_NOW)
        run.ended()


@pytest.mark.requirement("LEASE-09", "B-14", "B-16")
def test_LEASE_09_a_login_file_that_overwrites_the_devices_stops_the_run(drive: Drive) -> None:
    home = drive.environ["HOME"]
    with open(f"{home}/.profile", "w", encoding="ascii") as file:
        file.write("export CUDA_VISIBLE_DEVICES=7\n")
    run = drive(*ECHO, environ={**simulated(), "SHELL": "/bin/sh"}, login_shell=True, **ONE)
    end = run.ended()
    assert end.outcome is Outcome.FAILED
    assert end.exit_code == 78
    assert "lease mismatch" in end.evidence
    assert b"lease mismatch" in run.output()
    assert b"PCI_BUS_ID" not in run.output(), "the command never ran"


@pytest.mark.slow
@pytest.mark.requirement("LEASE-09")
def test_LEASE_09_a_login_file_that_leaves_them_alone_is_fine(drive: Drive) -> None:
    home = drive.environ["HOME"]
    with open(f"{home}/.profile", "w", encoding="ascii") as file:
        file.write("export GREETING=hello\n")
    run = drive(
        *("sh", "-c", 'echo "$GREETING $CUDA_VISIBLE_DEVICES"'),
        environ={**simulated(), "SHELL": "/bin/sh"},
        login_shell=True,
        **ONE,
    )
    assert run.ended().exit_code == 0
    assert run.output().startswith(b"hello ")


@pytest.mark.slow
@pytest.mark.requirement("LEASE-14")
def test_LEASE_14_the_default_is_to_fail_at_once_and_to_say_who_has_it(drive: Drive) -> None:
    first = drive(*job("stay"), environ=simulated(), **ONE)
    first.ready()
    end = drive(*job("stay"), environ=simulated(), **ONE).ended()
    assert end.exit_code == 75
    assert end.refusal is not None
    assert first.run_id in end.refusal.message
    assert "since" in end.refusal.message
    first.ask()
    first.ended()


@pytest.mark.requirement("LEASE-14", "LEASE-18")
def test_LEASE_14_18_three_waiters_get_the_card_in_their_order(drive: Drive) -> None:
    first = drive(*job("leave_when_told", f"{drive.workdir}/go", 0), environ=simulated(), **ONE)
    first.ready()
    waiters: list[Driven] = []
    for _ in range(3):
        waiter = drive(*job("exit_with", 0), environ=simulated(), **patient(60))
        wait_until(lambda waiter=waiter: waiter.events("blocked"))  # type: ignore[misc]
        tickets = len(waiters) + 1
        wait_until(lambda tickets=tickets: len(glob.glob(f"{drive.environ['HOLDFAST_LEASE_DIR']}/ticket-*")) == tickets)  # type: ignore[misc]
        waiters.append(waiter)
    with open(f"{drive.workdir}/go", "w"):
        pass
    ends = [waiter.ended() for waiter in (first, *waiters)][1:]
    assert all(end.outcome is Outcome.SUCCEEDED for end in ends)
    starts = [waiter.events("running")[0]["monotonic_s"] for waiter in waiters]
    assert starts == sorted(starts)
    assert records(drive) == []
    assert not glob.glob(f"{drive.environ['HOLDFAST_LEASE_DIR']}/ticket-*")


@pytest.mark.slow
@pytest.mark.requirement("LEASE-14")
def test_LEASE_14_a_wait_has_an_end(drive: Drive) -> None:
    first = drive(*job("stay"), environ=simulated(), **ONE)
    first.ready()
    second = drive(*job("stay"), environ=simulated(), **patient(0.8))
    end = second.ended()
    assert end.exit_code == 75
    assert "gave up after waiting" in end.evidence
    first.ask()
    first.ended()


@pytest.mark.slow
@pytest.mark.requirement("LEASE-14")
def test_LEASE_14_a_waiter_can_be_stopped_and_leaves_the_line(drive: Drive) -> None:
    first = drive(*job("stay"), environ=simulated(), **ONE)
    first.ready()
    second = drive(*job("stay"), environ=simulated(), **patient(600))
    wait_until(lambda: second.events("blocked"))
    second.ask()
    assert second.ended().outcome is Outcome.STOPPED
    third = drive(*job("exit_with", 0), environ=simulated(), **patient(600))
    wait_until(lambda: third.events("blocked"))
    first.ask()
    first.ended()
    assert third.ended().outcome is Outcome.SUCCEEDED


@pytest.mark.requirement("LEASE-14", "PROC-14")
def test_a_waiter_whose_supervisor_is_killed_waits_on_under_a_new_one(drive: Drive) -> None:
    first = drive(*job("stay"), environ=simulated(), **ONE)
    first.ready()
    second = drive(*job("exit_with", 6), environ=simulated(), **patient(600))
    wait_until(lambda: second.events("blocked"))
    second.kill_supervisor()
    second.adopt()
    wait_until(lambda: len(second.events("waiting")) > 1)
    first.ask()
    first.ended()
    assert second.ended().exit_code == 6


@pytest.mark.requirement("LEASE-02", "LEASE-03")
def test_an_adopted_run_keeps_its_lease_and_gives_it_back(drive: Drive) -> None:
    run = drive(*job("leave_when_told", f"{drive.workdir}/go", 0), environ=simulated(), **ONE)
    run.ready()
    run.kill_supervisor()
    run.adopt()
    wait_until(lambda: records(drive)[0]["supervisor"]["pid"] == run.supervisor().pid)
    assert drive(*job("stay"), environ=simulated(), **ONE).ended().exit_code == 75
    with open(f"{drive.workdir}/go", "w"):
        pass
    run.ended()
    assert_free(drive, simulated())


@pytest.mark.requirement("LEASE-02")
def test_LEASE_02_a_supervisor_killed_at_the_end_leaves_no_lease(drive: Drive) -> None:
    """Killed between the end and the release: the next one clears up, and the card was free at once anyway."""
    run = drive(*job("exit_with", 0), environ=simulated(), **ONE)
    run.wait_kind("ended", "finalizing")
    run.kill_supervisor()
    assert_free_now = drive(*job("exit_with", 0), environ=simulated(), **patient(20))
    assert assert_free_now.ended().outcome is Outcome.SUCCEEDED
    run.adopt()
    run.ended()
    assert records(drive) == []


def run_in_slurm(environ: dict[str, str]) -> str:
    """What the job of ``holdfast run`` prints in a job of Slurm: below a process of slurmstepd's name."""
    below = (sys.executable, "-I", "-S", "-c", STEPD, sys.executable, "-m", "holdfast")
    done = subprocess.run(
        [*below, "run", "--json", "--gpus", "1", "--", *ECHO],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done
    return Path(wire.attempt_dir(json.loads(done.stdout)["run_dir"], 1), wire.OUTPUT).read_text()


@pytest.mark.requirement("LEASE-17")
def test_LEASE_17_inside_a_scheduler_the_allocation_is_taken_as_it_is(drive: Drive) -> None:
    given = {**simulated(4), "SLURM_JOB_ID": "4242", "CUDA_VISIBLE_DEVICES": "1", "SLURM_JOB_GPUS": "1"}
    assert run_in_slurm(given).split()[0] == "1", "unchanged in the child"
    assert not glob.glob(f"{drive.environ['HOLDFAST_LEASE_DIR']}/*"), "no lock was taken"


@pytest.mark.requirement("LEASE-17")
@pytest.mark.parametrize(
    ("variable", "value"),
    [pytest.param("SLURM_JOB_ID", "7", id="slurm"), pytest.param("KUBERNETES_SERVICE_HOST", "10.0.0.1", id="pod")],
)
def test_LEASE_17_the_variable_of_an_allocation_elsewhere_gives_no_card_twice(
    drive: Drive, variable: str, value: str
) -> None:
    first = drive(*job("stay"), environ=simulated(), **ONE)
    first.ready()
    stale = {**simulated(), variable: value, "CUDA_VISIBLE_DEVICES": "0"}
    second = drive(*ECHO, environ=stale, **ONE)
    assert second.ended().exit_code == 75
    warned = [item for item in second.read(wire.PREFLIGHT)["findings"] if item["id"] == "allocation"]
    assert [(item["level"], item["subject"]) for item in warned] == [("warn", variable)]
    assert first.read(wire.MANIFEST)["allocation"] is None
    assert warned[0]["remedy"].startswith(f"unset {variable}")
    first.ask(RequestKind.STOP_NOW)
    first.ended()


SECOND = "GPU-51310000-0000-4000-8000-000000000001"


@pytest.fixture
def pod(tmp_path: Path) -> dict[str, str]:
    """The variables of a pod, with a directory that stands for its service account."""
    (tmp_path / "account").mkdir()
    account = {"HOLDFAST_SERVICE_ACCOUNT": f"{tmp_path}/account"}
    return {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "pod-1", **account}


@pytest.mark.slow
@pytest.mark.requirement("LEASE-17")
@pytest.mark.parametrize(
    ("cards", "given", "uuid"),
    [
        pytest.param(2, {"SLURM_JOB_GPUS": "1"}, SECOND, id="job"),
        pytest.param(2, {"GPU_DEVICE_ORDINAL": "1"}, SECOND, id="ordinal"),
        # The node's card 3 is the only one that the step's control group lets us see.
        pytest.param(1, {"SLURM_STEP_GPUS": "3"}, SECOND[:-1] + "0", id="hidden"),
    ],
)
def test_LEASE_17_cards_that_slurm_names_in_other_ways_are_taken_too(
    drive: Drive, cards: int, given: dict[str, str], uuid: str
) -> None:
    said = run_in_slurm({**simulated(cards), "SLURM_JOB_ID": "7", **given})
    assert said.split()[0] == uuid, "the job uses the card that was given"
    assert not glob.glob(f"{drive.environ['HOLDFAST_LEASE_DIR']}/*"), "no lock was taken"


@pytest.mark.slow
@pytest.mark.requirement("LEASE-17")
@pytest.mark.parametrize(("cards", "value"), [(2, SECOND), (1, "void")])
def test_LEASE_17_the_cards_of_a_pod_are_taken_as_it_has_them(
    drive: Drive, pod: dict[str, str], cards: int, value: str
) -> None:
    """Seen: each job with cards in Kubernetes was refused, which names them in NVIDIA_VISIBLE_DEVICES alone.

    With CDI it says ``void`` there: the cards that can be seen are those that were given.
    """
    run = drive(*ECHO, environ={**simulated(cards), **pod, "NVIDIA_VISIBLE_DEVICES": value}, **ONE)
    end = run.ended()
    assert end.exit_code == 0, end
    given = SECOND if value == SECOND else SECOND[:-1] + "0"
    assert run.output().split()[0] == given.encode(), "the job uses the card that was given"
    assert run.read(wire.MANIFEST)["allocation"] == "kubernetes"
    assert not glob.glob(f"{drive.environ['HOLDFAST_LEASE_DIR']}/*"), "no lock was taken"


@pytest.mark.slow
@pytest.mark.requirement("LEASE-17")
@pytest.mark.parametrize("value", ["all", "none", None])
def test_LEASE_17_what_gives_no_card_is_refused_by_name(drive: Drive, pod: dict[str, str], value: str | None) -> None:
    """``all`` stands in many images, and is nobody's allocation."""
    given = pod if value is None else {**pod, "NVIDIA_VISIBLE_DEVICES": value}
    end = drive(*ECHO, environ={**simulated(2), **given}, **ONE).ended()
    assert end.exit_code == 78
    assert "kubernetes job pod-1" in end.evidence


@pytest.mark.requirement("LEASE-18")
def test_LEASE_18_sharing_needs_both(drive: Drive) -> None:
    share = {"gpus": GpuRequest(count=1), "gpu": GpuOptions(idle_window_s=0.0, share=True)}
    first = drive(*job("stay"), environ=simulated(), **share)
    first.ready()
    assert drive(*job("stay"), environ=simulated(), **ONE).ended().exit_code == 75
    second = drive(*job("stay"), environ=simulated(), **share)
    second.ready()
    assert [record["share"] for record in records(drive)] == [True, True]
    for run in (first, second):
        run.ask(RequestKind.STOP_NOW)
        run.ended()
    assert_free(drive, simulated())


def on_fake(drive: Drive, fake: FakeNvml, *command: str, **fields: Any) -> Driven:
    """A run on cards of the fake library; the interpreter's own torch, which has no CUDA, is not asked about them."""
    chosen = {**ONE, **fields}
    return drive(*command, environ=fake.environment(), **{**chosen, "gpu": replace(chosen["gpu"], verify=False)})


@pytest.mark.slow
@pytest.mark.requirement("LEASE-08", "OBS-08")
def test_a_run_on_the_real_NVML_path_is_leased_watched_and_recorded(drive: Drive, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(2)
    run = on_fake(drive, fake_nvml, *job("beat_steps", 0.05), health_every_s=0.3)
    state = run.ready()
    assert state.devices[0].card_uuid == fake_nvml.cards[0].uuid
    wait_until(lambda: os.path.exists(run.path(wire.HEALTH)))

    def samples() -> list[dict[str, Any]]:
        with open(run.path(wire.HEALTH), encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    # The first sample of a supervisor has nothing to compare with.
    wait_until(lambda: any((sample.get("steps_per_s") or 0) > 0 for sample in samples()), what="the job's pace")
    last = samples()[-1]
    assert last["cards"][0]["uuid"] == fake_nvml.cards[0].uuid
    assert {"memory_used_bytes", "utilisation_pct", "temperature_c"} <= last["cards"][0].keys()
    assert last["step"] > 0
    run.ask(RequestKind.STOP_NOW)
    run.ended()
    assert run.read(wire.EXIT)["final_cards"]["source"] == "nvml"


@pytest.mark.requirement("LEASE-10")
def test_LEASE_10_a_busy_card_is_refused_by_name_and_passed_over_otherwise(drive: Drive, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(2)
    fake_nvml.set(0, utilisation=95)
    named = on_fake(drive, fake_nvml, *job("stay"), gpus=GpuRequest(count=1, devices=("0",)))
    end = named.ended()
    assert end.exit_code == 75, end
    assert "95" in end.evidence
    other = on_fake(drive, fake_nvml, *job("stay"))
    assert other.ready().devices[0].card_uuid == fake_nvml.cards[1].uuid
    other.ask(RequestKind.STOP_NOW)
    other.ended()


@pytest.mark.requirement("LEASE-10")
def test_LEASE_10_a_card_that_turns_busy_before_the_second_look_is_given_back(
    drive: Drive, fake_nvml: FakeNvml, tmp_path: Path
) -> None:
    """A foreign lock file holds the run up between the looks: the card turns busy while it waits."""
    fake_nvml.add_cards(1)
    first = on_fake(drive, fake_nvml, *job("stay"))
    first.ready()
    second = on_fake(drive, fake_nvml, *job("exit_with", 0), **patient(30))
    wait_until(lambda: second.events("blocked"))
    fake_nvml.run_on(0, (os.getpid(), 70 * 1024**3))
    first.ask(RequestKind.STOP_NOW)
    first.ended()
    wait_until(lambda: any(str(os.getpid()) in json.dumps(event["data"]) for event in second.events("blocked")))
    # It looks again and again, each time with the card in its hand.
    wait_until(lambda: second.run_id not in [record["run_id"] for record in records(drive)], what="it is given back")
    assert not second.events("running")
    fake_nvml.run_on(0)
    assert second.ended().outcome is Outcome.SUCCEEDED


@pytest.mark.requirement("LEASE-19")
def test_LEASE_19_two_slices_of_one_card_go_to_two_runs(drive: Drive, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    slices = ("MIG-aaaa0000-0000-4000-8000-000000000001", "MIG-aaaa0000-0000-4000-8000-000000000002")
    fake_nvml.slice(0, *slices)
    small = GpuOptions(idle_window_s=0.0, min_free_bytes=1024**3)
    runs = [
        on_fake(drive, fake_nvml, *job("stay"), gpus=GpuRequest(count=1, devices=(uuid,)), gpu=small) for uuid in slices
    ]
    assert [run.ready().devices[0].slice_uuid for run in runs] == list(slices)
    whole = on_fake(drive, fake_nvml, *job("stay"), gpus=GpuRequest(count=1, devices=("0",)), gpu=small)
    assert whole.ended().outcome is Outcome.FAILED
    for run in runs:
        run.ask(RequestKind.STOP_NOW)
        run.ended()


@pytest.mark.slow
def test_a_driver_that_hangs_refuses_the_run_and_does_not_hold_a_stop_up(drive: Drive, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.hang("nvmlInit_v2")
    run = on_fake(drive, fake_nvml, *job("stay"))
    run.wait_kind("waiting")
    run.ask()
    assert run.ended().outcome is Outcome.STOPPED
    fake_nvml.heal()


@pytest.mark.slow
def test_a_driver_that_hangs_while_the_job_runs_costs_a_reading(drive: Drive, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    run = on_fake(drive, fake_nvml, *job("leave_when_told", f"{drive.workdir}/go", 3), health_every_s=0.2)
    run.ready()
    wait_until(lambda: os.path.exists(run.path(wire.HEALTH)))
    fake_nvml.hang("nvmlDeviceGetMemoryInfo_v2")
    fake_nvml.hang("nvmlDeviceGetMemoryInfo")
    with open(f"{drive.workdir}/go", "w"):
        pass
    assert run.ended().exit_code == 3
    fake_nvml.heal()
    assert records(drive) == []


@pytest.mark.requirement("LEASE-10")
def test_no_such_card_is_not_waited_for(drive: Drive) -> None:
    run = drive(*job("stay"), environ=simulated(2), gpus=GpuRequest(count=3), gpu=GpuOptions(wait_s=600.0))
    end = run.ended()
    assert end.outcome is Outcome.FAILED
    assert end.exit_code == 78


@pytest.mark.requirement("LEASE-18")
def test_LEASE_18_runs_that_start_together_spread_over_the_cards(drive: Drive) -> None:
    """Both choose the first card, one gets it, the other takes the next instead of giving up."""
    runs = [drive(*job("stay"), environ=simulated(6), **ONE) for _ in range(6)]
    assert {run.ready().devices[0].index for run in runs} == set(range(6))
    for run in runs:
        run.ask(RequestKind.STOP_NOW)
    for run in runs:
        run.ended()


@pytest.mark.requirement("LEASE-02")
def test_LEASE_02_a_run_that_died_with_its_card_does_not_disturb_the_next_lessee(drive: Drive) -> None:
    dead = drive(*job("stay"), environ=simulated(), containment=IsolationLevel.SUBREAPER, **ONE)
    state = dead.ready()
    dead.kill_supervisor()
    dead.kill(state.keeper)
    dead.kill(state.job.process)
    lessee = drive(*job("stay"), environ=simulated(), **ONE)
    lessee.ready()
    dead.adopt()
    assert dead.ended().outcome in (Outcome.LOST, Outcome.FAILED)
    assert [record["run_id"] for record in records(drive)] == [lessee.run_id]
    assert drive(*job("stay"), environ=simulated(), **ONE).ended().exit_code == 75
    lessee.ask(RequestKind.STOP_NOW)
    lessee.ended()
    assert records(drive) == []


@pytest.mark.slow
@pytest.mark.requirement("POST-04")
def test_POST_04_a_card_is_not_handed_on_while_the_driver_still_holds_memory_of_the_dead(
    drive: Drive, fake_nvml: FakeNvml
) -> None:
    fake_nvml.add_cards(1)
    run = on_fake(drive, fake_nvml, *job("leave_when_told", f"{drive.workdir}/go", 0))
    run.ready()
    fake_nvml.run_on(0, (4_194_000, 5 * 1024**3))
    with open(f"{drive.workdir}/go", "w"):
        pass
    state = run.wait_kind("finalizing")
    wait_until(lambda: getattr(run.state().state, "emptied", True))
    assert run.kind() == "finalizing", state
    # The public record follows what was done.
    wait_until(lambda: records(drive)[0]["phase"] == "postflight", what="the record says so")
    fake_nvml.run_on(0)
    assert run.ended().outcome is Outcome.SUCCEEDED
    assert {"cards.empty": "pass"}.items() <= {
        finding["id"]: finding["level"] for finding in run.read(wire.POSTFLIGHT)["findings"]
    }.items()
