"""Jobs in containers of real runtimes: what is inside, how it ends, who may be killed meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.patrol.reconcile import reconcile_runs
from holdfast.agent.view.page import diagnosis as diagnosis_page
from holdfast.agent.view.page.dossier import read_dossier
from holdfast.core.job.setup import wrap_in_setup
from holdfast.diagnosis.live.judge import diagnose_live
from holdfast.host.container.recorded import look_inside
from holdfast.host.lease.area import open_area
from holdfast.host.lease.records import RecordStatus, judge_record, read_records
from holdfast.host.process import pidfd, processes
from holdfast.model import wire
from holdfast.model.container import CONTAINER_RECORD, ROOM, ContainerRecord, ContainerSpec, RuntimeName
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import GpuOptions, Limits, OrphanPolicy
from holdfast.model.record import replace
from holdfast.model.run import Outcome, Running
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from tests.agent.driving import Drive, Driven
    from tests.runtimes import Engine

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
UP_S = LIMIT_S

INSIDE = """
import json, os, sys
try:
    open(os.environ["DATA"] + "/new", "w")
    wrote = True
except OSError:
    wrote = False
import holdfast.training
pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
facts = {"environ": dict(os.environ), "uid": os.getuid(), "cwd": os.getcwd(), "pid": os.getpid(), "pids": pids,
         "wrote": wrote, "training": holdfast.training.__file__, "secret": open(os.environ["KEY"]).read(),
         "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize, "bound": os.listdir("/with")}
json.dump(facts, open(os.environ["HOLDFAST_RUN_DIR"] + "/artifacts/facts.json", "w"))
"""
TRAINER = """
import os, signal, sys, time
def stop(number, frame):
    open("stopped", "w").write(str(time.time()))
    sys.exit(7)
signal.signal(signal.SIGTERM, stop)
for _ in range(int(os.environ.get("ORPHANS", "0"))):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.01)
        os._exit(0)
    os.wait()
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


PROXY = "http://user:p4ssword@proxy:1/"
STUBBORN = TRAINER.replace("signal.SIGTERM, stop", "signal.SIGTERM, signal.SIG_IGN")


@pytest.fixture(params=["podman", pytest.param("docker", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each runtime that is here."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


def contain(engine: Engine, **fields: Any) -> ContainerSpec:
    return ContainerSpec(fields.pop("image", engine.image), RuntimeName(engine.name), **fields)


def start(drive: Drive, engine: Engine, *command: str, container: ContainerSpec | None = None, **fields: Any) -> Driven:
    environ = {**engine.environ, **fields.pop("environ", {})}
    return drive(*command, container=container or contain(engine), environ=environ, **fields)


def ready(run: Driven) -> Running:
    return run.ready(UP_S)


def record_of(run: Driven) -> ContainerRecord:
    with open(run.path(CONTAINER_RECORD), "rb") as file:
        return wire.from_bytes(ContainerRecord, file.read(), CONTAINER_RECORD)


def assert_removed(run: Driven, engine: Engine) -> None:
    name = f"holdfast-{run.run_id}"
    wait_until(lambda: not engine("ps", "--all", "--quiet", f"--filter=name={name}"), what="it was removed")
    assert not run.events("container_left")


@pytest.mark.slow
@pytest.mark.requirement("CTR-01", "CTR-04", "CTR-06", "CTR-09", "CTR-12", "RAIL-07", "B-16")
def test_CTR_01_what_is_inside_is_what_was_declared(drive: Drive, engine: Engine, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "images").write_text("pixels")
    secrets = tmp_path / "isolated" / "home" / ".config" / "holdfast" / "secrets"
    secrets.mkdir(parents=True, mode=0o700)
    (secrets / "KEY").write_text("s3cr3t value")
    (secrets / "TOKEN").write_text("t0k3n\nof two lines")
    for path in secrets.iterdir():
        path.chmod(0o600)
    odd = tmp_path / 'a, "b"'
    odd.mkdir()
    (odd / "seen").touch()
    bind = f"{odd}:/with"
    with open(f"{drive.workdir}/inside.py", "w", encoding="utf-8") as file:
        file.write(INSIDE)
    run = start(
        drive, engine, "python3", "inside.py",
        container=contain(engine, env=("PASSED", "ABSENT", "HTTP_PROXY"), binds=(bind,), shm_bytes=8 * 1024**2),
        env={"DATA": str(data), "MODE": "a b\n'c'"}, secrets=("KEY=file", "TOKEN"), data=(str(data),),
        environ={"PASSED": "on purpose", "HTTP_PROXY": PROXY, "SURPRISE": "stays outside", "PYTHONPATH": "/nowhere"},
    )  # fmt: skip
    ended = run.ended(UP_S)
    assert ended.outcome is Outcome.SUCCEEDED, run.output() + run.log().encode()
    with open(f"{run.run_dir}/artifacts/facts.json", encoding="utf-8") as file:
        facts = json.load(file)
    inside = facts["environ"]
    manifest = run.read("manifest.json")
    # Equal: declared by the job, by holdfast, and what runtimes and shells add by themselves.
    named = {"HOME", "USER", "LOGNAME", "PATH", "HOSTNAME", "TERM", "container", "PWD", "OLDPWD", "SHLVL", "_"}
    named |= {"NVIDIA_VISIBLE_DEVICES", "HOLDFAST_LEASE_DIR", "HOLDFAST_MACHINE_ID", "KEY", "TOKEN", "LC_CTYPE"}
    assert set(inside) - named == {*manifest["environment_added"], "DATA", "MODE", "PASSED", "HTTP_PROXY"} - named
    assert (inside["PASSED"], inside["MODE"], inside["TOKEN"]) == ("on purpose", "a b\n'c'", "t0k3n\nof two lines")
    assert (inside["HTTP_PROXY"], facts["bound"]) == (PROXY, ["seen"])
    assert (inside["NVIDIA_VISIBLE_DEVICES"], inside["CUDA_VISIBLE_DEVICES"]) == ("void", "-1")
    assert (facts["uid"], facts["cwd"], facts["secret"]) == (os.getuid(), drive.workdir, "s3cr3t value")
    assert not facts["wrote"]
    assert os.listdir(data) == ["images"]
    assert facts["training"].startswith(inside["HOLDFAST_LIBRARY"])
    assert facts["pid"] < 100
    assert 1 in facts["pids"]
    assert facts["shm"] == 8 * 1024**2
    words = json.dumps(run.events("container_created")) + run.log()
    assert "s3cr3t" not in words
    assert "t0k3n" not in words
    assert "p4ssword" not in words
    assert run.read("image.json")["digest"].startswith("sha256:")
    assert_removed(run, engine)


@pytest.mark.slow
@pytest.mark.requirement("CTR-01")
def test_CTR_01_proxies_of_the_clients_own_configuration_stay_outside(
    drive: Drive, docker: Engine, tmp_path: Path
) -> None:
    place = tmp_path / "docker"
    place.mkdir()
    proxies = {"httpProxy": PROXY, "httpsProxy": PROXY, "noProxy": "x", "allProxy": PROXY}
    (place / "config.json").write_text(json.dumps({"proxies": {"default": proxies}}))
    made = docker("commit", "--change=ENV no_proxy=images.own", docker("create", docker.tag, "true"))
    docker("rm", "--force", *docker("ps", "--all", "--quiet").split())
    run = start(
        drive, docker, "sh", "-c", "env >seen", container=contain(docker, image=made, env=("HTTPS_PROXY",)),
        environ={"DOCKER_CONFIG": str(place), "HTTP_PROXY": "http://callers:1/", "HTTPS_PROXY": "http://named:1/"},
    )  # fmt: skip
    assert run.ended(UP_S).outcome is Outcome.SUCCEEDED, run.output()
    lines = Path(drive.workdir, "seen").read_text().splitlines()
    assert {line for line in lines if "_proxy=" in line.lower()} == {
        "HTTPS_PROXY=http://named:1/",
        "no_proxy=images.own",
    }
    assert "p4ssword" not in Path(drive.workdir, "seen").read_text()


OVERWRITES = "echo hello\nexport CUDA_VISIBLE_DEVICES=7\n"


@pytest.mark.slow
@pytest.mark.requirement("CTR-09", "LEASE-09", "B-16")
def test_CTR_09_a_profile_in_the_image_that_overwrites_the_cards_is_never_read_or_found(
    drive: Drive, engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "profile").write_text(OVERWRITES)
    made = engine("create", engine.tag, "true").splitlines()[-1]
    engine("cp", str(tmp_path / "profile"), f"{made}:/etc/profile")
    image = engine("commit", made).splitlines()[-1]
    engine("rm", made)
    container = contain(engine, image=f"sha256:{image.removeprefix('sha256:')}")
    leased: dict[str, Any] = {"gpus": GpuRequest(count=1), "gpu": GpuOptions(idle_window_s=0.0)}
    environ = {"HOLDFAST_SIMULATED_GPUS": "1"}
    cards = 'echo "$CUDA_VISIBLE_DEVICES" >seen'
    seen = Path(drive.workdir, "seen")
    # By itself nothing reads it; `-l` behind the words of a shell is no option of its own.
    run = start(drive, engine, "sh", "-ec", cards, "-l", container=container, environ=environ, **leased)
    assert run.ended(UP_S).outcome is Outcome.SUCCEEDED, run.output()
    assert seen.read_text().startswith("GPU-")
    seen.unlink()
    # A command that has it read is not begun, with lines of setup before it, too.
    login = ("sh", "-l", "-c", cards)
    for command in (login, wrap_in_setup(("true",), login)):
        run = start(drive, engine, *command, container=container, environ=environ, **leased)
        ended = run.ended(UP_S)
        assert ended.exit_code == 78
        assert "lease mismatch" in ended.evidence
        assert "a file that this shell reads first" in ended.evidence
        assert not seen.exists()
    engine("rmi", "--force", image, code=None)


@pytest.mark.slow
@pytest.mark.requirement("CTR-04")
@pytest.mark.parametrize(
    ("words", "status"),
    [("exit 0", (0, None)), ("exit 3", (3, None)), ("exit 125", (125, None)), ("exit 137", (137, None)),
     ("kill -9 $$", (None, 9)), ("kill -11 $$", (None, 11)), ("kill -15 $$", (None, 15))],
)  # fmt: skip
def test_an_end_comes_out_exactly(
    drive: Drive, engine: Engine, words: str, status: tuple[int | None, int | None]
) -> None:
    run = start(drive, engine, "sh", "-c", words)
    ended = run.ended(UP_S)
    assert ended.status is not None
    assert (ended.status.code, ended.status.signal) == status
    assert ended.refusal is None
    assert_removed(run, engine)


@pytest.mark.slow
@pytest.mark.parametrize(("words", "number"), [("exit 3", 3), ("exit 127", 127), ("kill -9 $$", 137)])
def test_an_image_without_python_ends_by_the_shells_convention(
    drive: Drive, engine: Engine, words: str, number: int
) -> None:
    run = start(drive, engine, "sh", "-c", words, container=contain(engine, image=engine.shell_image))
    assert run.ended(UP_S).exit_code == number


@pytest.mark.slow
def test_a_program_that_the_image_has_not_is_told_from_a_job_that_ended_so(drive: Drive, engine: Engine) -> None:
    run = start(drive, engine, "no-such-program", "x")
    ended = run.ended(UP_S)
    assert ended.exit_code == 127
    assert ended.refusal is not None
    assert "is not in the image" in ended.refusal.message
    assert_removed(run, engine)


@pytest.mark.slow
@pytest.mark.requirement("CTR-04", "CTR-05", "B-07")
def test_CTR_04_term_reaches_the_trainer_and_orphans_are_reaped(drive: Drive, engine: Engine) -> None:
    run = start(drive, engine, "sh", "-c", 'python3 -c "$TRAINER"; exit $?', env={"TRAINER": TRAINER, "ORPHANS": "10"})
    ready(run)
    init = record_of(run).init
    assert init is not None
    wait_until(lambda: not list_zombies(init.pid), what="no zombie is left inside")
    run.ask()
    ended = run.ended(UP_S)
    assert ended.outcome is Outcome.STOPPED
    with open(f"{drive.workdir}/stopped", encoding="utf-8") as file:
        told = float(file.read())
    sent = next(event for event in run.events("term_sent"))
    assert told > 0
    assert sent["data"]["refused"] == []
    assert not run.events("kill_sent")
    assert_removed(run, engine)


def list_zombies(init: int) -> list[int]:
    namespace = os.stat(f"/proc/{init}/ns/pid").st_ino
    found = []
    for pid in processes.list_pids():
        stat = processes.read_stat(pid)
        try:
            if stat is not None and stat.state == "Z" and os.stat(f"/proc/{pid}/ns/pid").st_ino == namespace:
                found.append(pid)
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.requirement("CTR-05")
@pytest.mark.parametrize("victim", ["client", "keeper", "supervisor"])
def test_CTR_05_whoever_is_killed_nothing_survives(drive: Drive, engine: Engine, victim: str) -> None:
    run = start(drive, engine, "python3", "-c", TRAINER)
    state = ready(run)
    container = record_of(run)
    assert container.init is not None
    if victim == "client":
        run.kill(state.job.process)
        assert run.ended(UP_S).exit_code == 128 + signal.SIGKILL
    elif victim == "keeper":
        run.kill(state.keeper)
        wait_until(lambda: run.events("keeper_lost"), what="the supervisor takes its place")
        run.ask()
        assert run.ended(UP_S).status.code == 7  # type: ignore[union-attr]
    else:
        run.kill_supervisor()
        assert processes.is_alive(container.init)
        run.adopt()
        run.ask()
        assert run.ended(UP_S).status.code == 7  # type: ignore[union-attr]
    assert not processes.is_alive(container.init)
    assert_removed(run, engine)


def kill_all_of_ours(run: Driven, state: Running) -> None:
    victims = (run.supervisor(), state.keeper, state.job.process)
    for process in victims:
        pidfd.send_signal(process, signal.SIGSTOP)
    for process in victims:
        run.kill(process)


@pytest.mark.slow
@pytest.mark.requirement("CTR-05", "PROC-23")
@pytest.mark.parametrize("policy", [OrphanPolicy.KEEP, OrphanPolicy.KILL])
@pytest.mark.parametrize("with_keeper", [True, False])
def test_a_container_that_nobody_can_end_any_more_ends_itself(
    drive: Drive, engine: Engine, policy: OrphanPolicy, with_keeper: bool
) -> None:
    if engine.name == "podman" and policy is OrphanPolicy.KEEP:
        pytest.skip("its monitor goes on, as what a leader has started does")
    run = start(drive, engine, "python3", "-c", TRAINER, on_supervisor_death=policy)
    state, container = ready(run), record_of(run)
    init = container.init
    assert init is not None
    if with_keeper:
        run.kill_supervisor()
        pidfd.send_signal(state.job.process, signal.SIGKILL)
    else:
        kill_all_of_ours(run, state)
    wait_until(lambda: not processes.is_alive(init), what="it has ended by itself")
    assert Path(drive.workdir, "stopped").exists(), "the command had its TERM"
    run.adopt()
    ended = run.ended(UP_S)
    assert ended.status is not None
    # Its own end, not the one of the client that was killed.
    assert (ended.status.code, run.read("exit.json")["status"]["code"]) == (7, 7)
    assert_removed(run, engine)


@pytest.mark.slow
@pytest.mark.requirement("CTR-05", "PROC-23")
@pytest.mark.parametrize("code", [0, 5])
def test_one_that_ended_by_itself_while_nobody_lived_is_judged_by_its_own_end(
    drive: Drive, docker: Engine, code: int
) -> None:
    trainer = STUBBORN.replace("while True:", "while not os.path.exists('go'):") + f"sys.exit({code})"
    run = start(drive, docker, "python3", "-c", trainer)
    state, init = ready(run), record_of(run).init
    assert init is not None
    kill_all_of_ours(run, state)
    assert processes.is_alive(init)
    Path(drive.workdir, "go").touch()
    wait_until(lambda: not processes.is_alive(init), what="it has ended by itself")
    run.adopt()
    ended = run.ended(UP_S)
    assert (ended.outcome is Outcome.SUCCEEDED, ended.exit_code) == (code == 0, code)
    assert run.events("client_outlived")
    assert_removed(run, docker)


ALONE = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


@pytest.mark.slow
@pytest.mark.requirement("CTR-05", "LEASE-03", "PROC-23")
@pytest.mark.parametrize("room", [True, False])
def test_one_that_lives_alone_is_seen_and_ended_by_its_id_also_when_its_room_is_gone(
    drive: Drive, docker: Engine, room: bool
) -> None:
    run = start(
        drive, docker, "sh", "-c", ALONE, container=contain(docker, image=docker.shell_image), grace_s=0.5,
        gpus=GpuRequest(count=1), gpu=GpuOptions(idle_window_s=0.0), environ={"HOLDFAST_SIMULATED_GPUS": "1"},
    )  # fmt: skip
    state, container = ready(run), record_of(run)
    init = container.init
    assert init is not None
    if not room:
        shutil.rmtree(run.path(ROOM))
    kill_all_of_ours(run, state)
    # Without a Python nobody inside has seen that; the daemon keeps it.
    seen = look_inside(run.directory)
    assert seen is not None
    assert init.pid in seen.pids
    area = open_area(None, environ=drive.environ)
    assert judge_record(read_records(area)[0][0]).standing is RecordStatus.DRAINING
    client = state.job.process.pid
    wait_until(lambda: processes.read_stat(client) is None, what="whoever got the client has reaped it")
    run.adopt()
    ended = run.ended(UP_S)
    # How the client ended nobody has heard, and the kernel forgets it with the process.
    assert (ended.outcome, ended.exit_code) == (Outcome.LOST, 71)
    assert not processes.is_alive(init)
    wait_until(lambda: not read_records(area)[0], what="the card was given back")
    assert_removed(run, docker)


@pytest.mark.slow
@pytest.mark.requirement("CTR-05")
def test_a_gate_that_was_opened_and_not_committed_is_found_open(drive: Drive, podman: Engine) -> None:
    run = start(drive, podman, "python3", "-c", TRAINER)
    ready(run)
    run.kill_supervisor()
    # As of one that was killed between the word to go and its record.
    before = replace(record_of(run), opened=False)
    Path(run.path(CONTAINER_RECORD)).write_bytes(wire.to_bytes(before))
    run.adopt()
    wait_until(lambda: record_of(run).opened, what="it is known to have begun")
    run.ask()
    assert run.ended(UP_S).status.code == 7  # type: ignore[union-attr]
    assert_removed(run, podman)


@pytest.mark.slow
@pytest.mark.requirement("LEASE-06", "LEASE-07", "LEASE-09", "CTR-02", "CTR-11")
def test_the_lease_names_who_is_inside_before_the_command_runs(drive: Drive, podman: Engine) -> None:
    check_lease(drive, podman)


@pytest.mark.slow
@pytest.mark.requirement("LEASE-09")
def test_with_docker_the_lease_holds_by_the_container_alone(drive: Drive, docker: Engine) -> None:
    check_lease(drive, docker)


def check_lease(drive: Drive, engine: Engine) -> None:
    run = start(
        drive, engine, "python3", "-c", STUBBORN, gpus=GpuRequest(count=1), gpu=GpuOptions(idle_window_s=0.0),
        environ={"HOLDFAST_SIMULATED_GPUS": "1"},
    )  # fmt: skip
    state = ready(run)
    container = record_of(run)
    init = container.init
    assert init is not None
    assert container.opened
    # Which pid inside is which here (CTR-11).
    shown = read_dossier(run.run_dir, None).container
    assert shown is not None
    assert (init.pid, 1) in {(one.pid, one.inner_pid) for one in shown.processes}
    area = open_area(None, environ=drive.environ)
    seen = read_records(area)[0][0]
    assert init in seen.record.members
    inside = processes.read_environ(init.pid)
    assert inside is not None
    assert inside["CUDA_VISIBLE_DEVICES"] == seen.record.devices[0].uuid
    assert seen.record.cgroup in container.groups
    # While it runs nothing is out of line: its container is listed, and is left.
    assert not reconcile_runs(drive.root, dry_run=False).repairs
    # All of ours are killed at once: what is inside holds the card, for every account that looks.
    kill_all_of_ours(run, state)
    assert processes.is_alive(init)
    judged = judge_record(read_records(area)[0][0])
    assert judged.standing is RecordStatus.DRAINING
    assert init.pid in judged.pids
    # Put in line again by one command: ended, recorded, the card given back, the container removed.
    report = reconcile_runs(drive.root, dry_run=False)
    assert any(repair.done for repair in report.repairs), report
    wait_until(lambda: not processes.is_alive(init), what="the container has ended")
    run.ended(UP_S)
    wait_until(lambda: not read_records(area)[0], what="the card was given back")
    assert_removed(run, engine)


HANGS = """
import os, sys, time
from holdfast.training.reporting import stacks
stacks.install(os.path.dirname(os.environ["HOLDFAST_HEARTBEAT"]) + "/stacks.txt")
def wait_for_ever():
    print("ready", flush=True)
    while True:
        time.sleep(0.05)
wait_for_ever()
"""


@pytest.mark.slow
@pytest.mark.requirement("CTR-11")
@pytest.mark.parametrize("name", ["podman", "docker"])
def test_CTR_11_diagnose_and_stacks_are_of_who_is_inside(
    drive: Drive, request: pytest.FixtureRequest, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis_page, "diagnose_live", partial(diagnose_live, interval_s=0.3))
    run = start(drive, request.getfixturevalue(name), "python3", "-c", HANGS)
    ready(run)
    inner = run.read("stacks.json")["pid"]
    shown = read_dossier(run.run_dir, None).container
    assert shown is not None
    pid = next(one.pid for one in shown.processes if one.inner_pid == inner)
    assert pid != inner
    report = diagnosis_page.diagnose_run(run.run_dir, None, deep=False, tell=lambda _: None)
    looked_at = json.dumps(wire.encode(report))
    assert f"pid {pid}: wait_for_ever" in looked_at
    # Neither its init, nor what waits for it, nor the runtime's client is the training.
    assert '"processes": 1,' in looked_at
    run.ask()
    run.ended(UP_S)


@pytest.mark.slow
@pytest.mark.requirement("CTR-10")
def test_CTR_10_limits_are_the_runtimes_own(drive: Drive, engine: Engine) -> None:
    limits = Limits(memory_bytes=128 * 1024**2, cpus=0.5, tasks=64, open_files=512)
    run = start(drive, engine, "python3", "-c", TRAINER, limits=limits)
    ready(run)
    facts = json.loads(engine("container", "inspect", record_of(run).id))[0]["HostConfig"]
    assert (facts["Memory"], facts["MemorySwap"], facts["PidsLimit"]) == (128 * 1024**2, 128 * 1024**2, 64)
    nano = facts["NanoCpus"] or 1e9 * facts["CpuQuota"] / facts["CpuPeriod"]
    assert nano == 5e8
    assert {item["mechanism"] for item in run.read("manifest.json")["limits"]} == {"container", "rlimit"}
    init = record_of(run).init
    assert init is not None
    with open(f"/proc/{init.pid}/limits", encoding="ascii") as file:
        assert next(line for line in file if line.startswith("Max open files")).split()[3] == "512"
    run.ask()
    run.ended(UP_S)


@pytest.mark.slow
def test_a_kill_for_memory_inside_is_told(drive: Drive, engine: Engine) -> None:
    words = "x = []\nwhile True: x.append(bytes(1 << 20) + b'x' * 1024)"
    run = start(drive, engine, "python3", "-c", words, limits=Limits(memory_bytes=64 * 1024**2))
    ended = run.ended(UP_S)
    assert ended.exit_code == 137
    found = {finding["id"] for finding in run.read("postflight.json")["findings"]}
    assert "limits.reached" in found, (found, run.read("exit.json"))


ENDS_ITSELF = TRAINER.replace("while True:", "while not os.path.exists('go'):") + "sys.exit(5)"


@pytest.mark.slow
@pytest.mark.requirement("CTR-04", "CTR-05")
@pytest.mark.parametrize("stopped", [True, False])
def test_the_daemon_may_be_restarted_under_a_run(
    drive: Drive, docker: Engine, request: pytest.FixtureRequest, stopped: bool
) -> None:
    daemon = request.getfixturevalue("daemon")
    run = start(drive, docker, "python3", "-c", ENDS_ITSELF)
    ready(run)
    container = record_of(run)
    assert container.init is not None
    daemon.stop()
    daemon.start()
    # Its client has lost it, and the training goes on: its end is its own.
    wait_until(lambda: run.events("client_lost"), UP_S, what="the client is known to be lost")
    assert (run.kind(), processes.is_alive(container.init)) == ("running", True)
    if stopped:
        run.ask()
    else:
        Path(drive.workdir, "go").touch()
    ended = run.ended(UP_S)
    assert (ended.outcome, ended.status and ended.status.code) == (
        (Outcome.STOPPED, 7) if stopped else (Outcome.FAILED, 5)
    )
    assert not processes.is_alive(container.init)
    assert_removed(run, docker)


@pytest.mark.slow
@pytest.mark.requirement("CTR-05")
def test_a_container_that_was_paused_by_hand_is_named_and_ends_when_it_is_to(drive: Drive, engine: Engine) -> None:
    run = start(drive, engine, "python3", "-c", TRAINER)
    ready(run)
    container = record_of(run)
    engine("pause", container.id)
    shown = read_dossier(run.run_dir, None).container
    assert shown is not None
    assert shown.paused
    run.ask()
    ended = run.ended(UP_S)
    # The trainer had its TERM, and its time.
    assert (ended.outcome, ended.status and ended.status.code) == (Outcome.STOPPED, 7)
    assert run.events("container_paused")
    assert not run.events("kill_sent")
    assert_removed(run, engine)


LEAVES = TRAINER.replace("sys.exit(7)", "sys.exit(0)")


@pytest.mark.slow
@pytest.mark.requirement("CTR-05")
@pytest.mark.parametrize(("trainer", "words"), [(LEAVES, "exit code 0"), (STUBBORN, "137"), ("", "signal 15")])
def test_a_stop_of_the_runtime_by_hand_is_a_stop_and_no_failure(
    drive: Drive, engine: Engine, trainer: str, words: str
) -> None:
    run = start(drive, engine, *(("python3", "-c", trainer) if trainer else ("sh", "-c", "echo ready; exec sleep 99")))
    ready(run)
    engine("stop", "--time=1", record_of(run).id, code=None)
    ended = run.ended(UP_S)
    assert (ended.outcome, ended.exit_code) == (Outcome.STOPPED, 130), ended
    assert "SIGTERM to the container" in ended.evidence
    assert words in ended.evidence
    assert_removed(run, engine)


@pytest.mark.slow
def test_a_stop_while_it_comes_up_leaves_nothing(drive: Drive, podman: Engine) -> None:
    run = start(drive, podman, "python3", "-c", TRAINER)
    wait_until(lambda: run.kind() in ("starting", "running"), UP_S, what="it is starting")
    run.ask()
    ended = run.ended(UP_S)
    assert ended.outcome is Outcome.STOPPED
    assert_removed(run, podman)
