"""Acceptance checks carried out as they are written: whole commands, real processes, real disks, a real connection."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.requests import write_request
from holdfast.host.clock import utc_now
from holdfast.model.errors import NotPermitted
from holdfast.model.run import RequestKind, RunRequest
from tests.cli.conftest import ENTRY
from tests.cli.live import SLEEPER, live_run
from tests.host.small_disk import mount_small_disk
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cli.conftest import Command
    from tests.fakes.nvml import FakeNvml

pytestmark = pytest.mark.cli

NOBODY = 65534


def events(run_dir: str) -> list[str]:
    """The names of what happened in a run's first attempt."""
    with open(f"{run_dir}/attempts/1/events.jsonl", encoding="utf-8") as file:
        return [json.loads(line)["event"] for line in file]


def only_run(holdfast: Command) -> dict[str, object]:
    """The one run there is."""
    (run,) = holdfast("ls", "--all", "--json").json()["runs"]
    assert isinstance(run, dict)
    return run


def is_refused_to_nobody(error: type[Exception], attempt: Callable[[], object]) -> bool:
    """Whether `attempt`, made in a child that has become another account, ends with `error`."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            attempt()
        except error:
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


@contextmanager
def decoy(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """The very command of a job, started by hand."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.gotcha("U1")
@pytest.mark.requirement("ETIQ-02", "PROC-08", "B-20", "B-84")
def test_ETIQ_02_a_decoy_with_the_same_command_line_survives_every_verb(holdfast: Command) -> None:
    with decoy(*SLEEPER) as stranger, live_run(holdfast, "--name", "job") as run:
        commands = [
            ("ls",),
            ("show", run.run_id),
            ("logs", run.run_id),
            ("gpus",),
            ("stop", run.run_id),
            ("restart", run.run_id),
            ("stop", "--now", run.run_id),
            ("rm", "--yes", run.run_id),
        ]
        for words in commands:
            done = holdfast(*words)
            assert done.code == 0, (words, done)
            assert stranger.poll() is None, words
        assert not os.path.exists(run.run_dir)


@pytest.mark.requirement("PROC-18", "ETIQ-02")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_PROC_18_nobody_cannot_stop_roots_run_and_its_owner_may_twice(holdfast: Command, public_path: Path) -> None:
    with live_run(holdfast, "--runs", str(public_path)) as run:
        for request in (RequestKind.STOP, RequestKind.STOP_NOW):
            wanted = RunRequest(request, "nobody", utc_now())
            assert is_refused_to_nobody(NotPermitted, lambda wanted=wanted: write_request(run.run_dir, wanted))  # type: ignore[misc]
        assert run.look().condition == "running"
        assert not os.path.exists(f"{run.run_dir}/desired.json")
        assert holdfast("stop", run.run_dir).code == 0
        again = holdfast("stop", run.run_dir)
        assert again.code == 0
        assert "already" in again.out


@pytest.mark.slow
@pytest.mark.requirement("ETIQ-01")
def test_ETIQ_01_a_plain_run_is_nice_on_a_shared_box_and_a_normal_one_is_not(holdfast: Command) -> None:
    with open(os.environ["HOLDFAST_RULES"], "w", encoding="ascii") as rules:
        rules.write("nice = 10\n")
    look = ("--", "sh", "-c", "nice; ionice")
    low, normal = holdfast("run", *look), holdfast("run", "--priority", "normal", *look)
    assert "priority low (this box has rules): nice 10; set yours with `holdfast config set priority" in low.err
    assert low.out.splitlines()[:2] == ["10", "best-effort: prio 7"]
    assert normal.out.splitlines()[0] == str(os.nice(0))


@pytest.mark.slow
@pytest.mark.requirement("PROC-07")
def test_PROC_07_show_tells_a_grace_above_the_measured_save(holdfast: Command) -> None:
    beat = 'echo \'{"step": 1, "save_seconds": 40}\' > "$HOLDFAST_HEARTBEAT"; echo ready; sleep 600'
    with live_run(holdfast, job=("sh", "-c", beat)) as run:
        assert re.search(r"stop grace +80 s|stop grace +1m ?20s|stop grace +1\.3 min", holdfast("show", run.run_id).out)


@pytest.mark.slow
@pytest.mark.requirement("PROC-09")
def test_PROC_09_start_and_stop_from_something_like_cron(
    holdfast: Command, isolated_environment: dict[str, str]
) -> None:
    bare = {"PATH": "/usr/bin:/bin", **isolated_environment}

    def cron(*words: str) -> subprocess.CompletedProcess[str]:
        quoted = ["setsid", "-w", "sh", "-c", 'exec "$@" < /dev/null', "sh", *ENTRY, *words]
        return subprocess.run(quoted, env=bare, capture_output=True, text=True, check=False, timeout=LIMIT_S)

    started = cron("run", "-d", "--prove", "0", "--json", "--", *SLEEPER)
    assert started.returncode == 0, started
    run_id = json.loads(started.stdout)["run_id"]
    stopped = cron("stop", run_id)
    assert stopped.returncode == 0, stopped
    assert holdfast("show", "--json", run_id).json()["condition"] == "stopped"


@pytest.mark.slow
@pytest.mark.requirement("PROC-13", "PROC-25")
def test_PROC_13_detaching_passes_early_failures_on(holdfast: Command) -> None:
    absent = holdfast("run", "-d", "--", "/no/such")
    assert absent.code in (78, 127)
    assert "/no/such" in absent.err
    early = holdfast("run", "-d", "--prove", "20s", "--", "sh", "-c", "sleep 1; exit 9")
    assert early.code == 9
    assert "failed" in early.err
    with live_run(holdfast) as run:
        assert run.look().condition == "running"


@pytest.mark.gotcha("U2")
@pytest.mark.requirement("PROC-20", "B-33b")
def test_PROC_20_overwriting_the_script_of_a_live_run_changes_nothing(holdfast: Command, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    # More than any shell reads ahead, so that what stands behind it is read after the edit.
    unread = "# not read yet\n" * 10_000
    body = f"echo ready\nwhile [ ! -e go ]; do sleep 0.05; done\n{unread}echo {{}}\n"
    script.write_text(body.format("as it was"))
    with live_run(holdfast, "--workdir", str(tmp_path), job=("sh", "job.sh")) as run:
        with script.open("r+") as file:
            file.write(body.format("EDITED!!!"))
        (tmp_path / "go").touch()
        run.wait_condition("succeeded")
        assert run.output() == "ready\nas it was\n"


@pytest.mark.slow
@pytest.mark.requirement("RAIL-02")
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--image", "/nowhere/x.sif", "--", "true"), "/nowhere/x.sif"),
        (("--config", "/nowhere/c.json", "--", "true"), "/nowhere/c.json"),
        (("--input", "/nowhere/in.txt", "--", "true"), "/nowhere/in.txt"),
        (("--data", "/nowhere/data", "--", "true"), "/nowhere/data"),
        (("--", "/nowhere/program"), "/nowhere/program"),
        (("--gpus", "7", "--", "true"), "7"),
    ],
)
def test_RAIL_02_a_missing_thing_stops_the_run_before_anything_starts(
    holdfast: Command, words: tuple[str, ...], named: str
) -> None:
    cards = {"HOLDFAST_SIMULATED_GPUS": "1"}
    request = () if "--gpus" in words else ("--gpus", "1")
    done = holdfast("run", "--idle-window", "0s", *request, *words, env=cards)
    assert done.code in (64, 65, 66, 78), done
    assert named in done.err
    left = [name for name in os.listdir(os.environ["HOLDFAST_LEASE_DIR"]) if name.startswith(("lease-", "ticket-"))]
    assert left == []
    for run in holdfast("ls", "--all", "--json").json()["runs"]:
        assert not {"exec", "starting", "running"}.intersection(events(str(run["run_dir"])))


@pytest.mark.gotcha("U6")
@pytest.mark.requirement("RAIL-10", "PRE-06")
def test_RAIL_10_the_second_run_is_refused_when_the_first_has_filled_the_disk(
    holdfast: Command, tmp_path: Path
) -> None:
    with mount_small_disk(tmp_path / "disk", 100 << 20) as disk:
        words = (
            "--disk-min-free",
            "80MiB",
            "--disk-min-free-inodes",
            "1",
            "--workdir",
            str(disk),
            "--runs",
            str(tmp_path / "runs"),
        )
        first = holdfast("run", *words, "--", "sh", "-c", "head -c 30M /dev/zero > job1")
        assert first.code == 0, first
        second = holdfast("run", *words, "--", "touch", "job2")
        assert second.code == 78
        assert "disk.bytes" in second.err
        assert str(disk) in second.err
        assert not (disk / "job2").exists()


@pytest.mark.slow
@pytest.mark.requirement("LEASE-11")
@pytest.mark.parametrize(("free", "code"), [(int(9.5 * 1024**3), 75), (int(10.1 * 1024**3), 0)])
def test_LEASE_11_a_card_with_less_than_10_GB_free_is_refused_unless_less_is_asked_for(
    holdfast: Command, fake_nvml: FakeNvml, free: int, code: int
) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.set(0, memory__total=free + int(str(fake_nvml.cards[0].values["memory.reserved"])))
    window = ("--gpus", "1", "--idle-window", "0s")
    done = holdfast("run", *window, "--", "true")
    assert done.code == code, done
    assert ("9.5 GiB" in done.err) is (code != 0)
    taken = holdfast("run", *window, "--min-free", "8GB", "--", "true")
    assert taken.code == 0, taken


# --- a connection that is lost for real


@pytest.fixture
def remote(tmp_path: Path) -> tuple[str, ...]:
    """The words of an ssh client that reaches a private sshd over a pipe: no port, no account but our own."""
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if sshd is None or os.geteuid() != 0:
        pytest.skip("needs sshd (package openssh-server) and root")
    os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    home = tmp_path / "ssh"
    home.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / name)], check=True)
    (home / "authorized").write_text((home / "user.pub").read_text())
    (home / "sshd_config").write_text(
        f"HostKey {home}/host\nAuthorizedKeysFile {home}/authorized\nStrictModes no\nUsePAM no\nPidFile none\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\n"
    )
    proxy = f"{sshd} -i -f {home}/sshd_config"
    options = (
        "StrictHostKeyChecking=no",
        f"UserKnownHostsFile={home}/known",
        f"ProxyCommand={proxy}",
        "LogLevel=ERROR",
    )
    return ("ssh", "-F", "none", "-i", str(home / "user"), *(word for one in options for word in ("-o", one)))


@pytest.mark.slow
@pytest.mark.gotcha("GEN2")
@pytest.mark.requirement("PROC-12")
def test_PROC_12_a_run_survives_the_loss_of_the_ssh_client(
    holdfast: Command, remote: tuple[str, ...], isolated_environment: dict[str, str]
) -> None:
    import shlex

    settings = [f"{name}={value}" for name, value in isolated_environment.items()]
    words = shlex.join(["env", *settings, *ENTRY, "run", "-d", "--prove", "0", "--name", "far", "--", *SLEEPER])
    client = subprocess.Popen(
        [*remote, "-tt", "root@box", f"{words}; echo detached; sleep 600"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said = b""
        while b"detached" not in said:
            assert client.stdout is not None
            part = os.read(client.stdout.fileno(), 4096)
            assert part, said
            said += part
        assert b"running" in said, said
    finally:
        client.kill()
        client.communicate()
    try:
        found = subprocess.run(
            [*remote, "root@box", shlex.join(["env", *settings, *ENTRY, "show", "--json", "far"])],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        assert found.returncode == 0, found
        assert json.loads(found.stdout)["condition"] == "running"
    finally:
        ended = holdfast("stop", "--now", "far")
    assert ended.code == 0


# --- what the job is given, seen from inside of it


@pytest.mark.slow
@pytest.mark.requirement("RAIL-03", "RAIL-04", "B-11", "B-13")
def test_RAIL_03_04_a_job_whose_torch_is_not_known_gets_both_names(holdfast: Command) -> None:
    done = holdfast("run", "--", "env")
    assert done.code == 0, done
    seen = dict(line.split("=", 1) for line in done.out.splitlines() if "=" in line)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        assert seen[name] == "expandable_segments:True,max_split_size_mb:512"
    assert seen["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
    assert "NCCL_ASYNC_ERROR_HANDLING" in seen


@pytest.mark.slow
@pytest.mark.requirement("RAIL-03", "B-11")
def test_RAIL_03_a_setting_that_torch_cannot_parse_is_refused_with_the_right_one(holdfast: Command) -> None:
    done = holdfast("run", "--", "env", env={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb=512"})
    assert done.code == 78
    assert "max_split_size_mb:512" in done.err
    assert "exec" not in events(str(only_run(holdfast)["run_dir"]))


@pytest.mark.slow
@pytest.mark.gotcha("U40")
@pytest.mark.requirement("RAIL-06")
def test_RAIL_06_the_job_sees_its_caps_and_a_users_own_number(holdfast: Command) -> None:
    most = min(8, len(os.sched_getaffinity(0)))
    capped = holdfast("run", "--", "sh", "-c", "echo $OMP_NUM_THREADS $MKL_NUM_THREADS").out.split()
    assert len(capped) == 2
    assert all(1 <= int(word) <= most for word in capped)
    stated = holdfast("run", "--", "sh", "-c", "echo $OMP_NUM_THREADS", env={"OMP_NUM_THREADS": "1"})
    assert stated.out.split() == ["1"]


@pytest.mark.gotcha("U40")
@pytest.mark.requirement("RAIL-06", "LIM-08")
def test_RAIL_06_threads_are_counted_from_the_runs_own_affinity(holdfast: Command) -> None:
    first = str(min(os.sched_getaffinity(0)))
    words = ("--limit-affinity", first, "--containment", "process_group")
    bound = holdfast("run", *words, "--", "sh", "-c", "echo $OMP_NUM_THREADS $MKL_NUM_THREADS")
    assert bound.out.split() == ["1", "1"], bound


@pytest.mark.slow
@pytest.mark.requirement("OBS-06")
@pytest.mark.parametrize(("words", "seed"), [(("--seed", "7"), 7), ((), "not stated")])
def test_OBS_06_a_seed_is_recorded_and_its_absence_said(
    holdfast: Command, words: tuple[str, ...], seed: object
) -> None:
    assert holdfast("run", *words, "--", "true").code == 0
    run = only_run(holdfast)
    with open(f"{run['run_dir']}/attempts/1/manifest.json", encoding="utf-8") as file:
        assert json.load(file)["seed"] == seed
    assert re.search(rf"seed +{seed}", holdfast("show", str(run["run_id"])).out)


@pytest.mark.slow
@pytest.mark.gotcha("U36")
@pytest.mark.requirement("OBS-06", "LIB-09")
def test_OBS_06_what_the_training_itself_seeded_and_switched_is_recorded(holdfast: Command, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from holdfast import training\n"
        "with training.run(seed=7, deterministic=True) as run:\n"
        "    for _ in run.steps(1):\n"
        "        pass\n"
    )
    done = holdfast("run", "--json", "--", sys.executable, str(script), env={"PYTHONHASHSEED": "0"})
    assert done.code == 0, done
    shown = holdfast("show", done.json()["run_dir"]).out
    assert re.search(r"seed +7\n", shown)
    assert re.search(r"determinism +PYTHONHASHSEED=0\n", shown)
    plain = holdfast("run", "--json", "--", "true").json()["run_dir"]
    assert re.search(r"determinism +not stated\n", holdfast("show", plain).out)


@pytest.mark.slow
@pytest.mark.requirement("OBS-04", "B-75")
def test_OBS_04_no_secret_of_the_callers_environment_is_anywhere(holdfast: Command, tmp_path: Path) -> None:
    secrets = {"WANDB_API_KEY": "w4ndb-53cr3t-value", "HF_TOKEN": "hf_53cr3tTokenValue0123456789abcd"}
    done = holdfast("run", "--", "sh", "-c", 'test -n "$HF_TOKEN" && echo has it', env=secrets)
    assert done.code == 0, done
    assert "has it" in done.out
    run_id = str(only_run(holdfast)["run_id"])
    said = [holdfast("show", *words, run_id).out for words in ((), ("--json",), ("--environment",))]
    said += [done.out, done.err]
    for directory, _, names in os.walk(tmp_path / "isolated"):
        for name in names:
            with open(f"{directory}/{name}", errors="replace", encoding="utf-8") as file:
                said.append(file.read())
    assert len(said) > 10
    for secret in secrets.values():
        assert not [text for text in said if secret in text]
