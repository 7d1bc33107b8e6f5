"""From a job file and options to a JobSpec: every key, every layer, every mistake in its place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.cli.job.documents import Node
from holdfast.cli.job.jobfile import name_from_command, read_job
from holdfast.model.container import ContainerSpec, ContainerUser, EntryPoint, RuntimeName
from holdfast.model.errors import HoldfastError, JobFileError, UsageError
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import (
    Channels,
    Checkpoints,
    DiskNeeds,
    GpuOptions,
    IsolationLevel,
    JobSpec,
    Limits,
    Notify,
    OrphanPolicy,
    OutOfMemory,
    Priority,
    PtraceScope,
    Results,
    Retries,
    SmtpTls,
    StallAction,
    StallOptions,
    Timeouts,
    TrackerMode,
    UnenforcedPolicy,
)
from holdfast.model.record import fields
from tests.each import each

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli

EVERYTHING_YAML = """\
name: resnet-50
command: [python, train.py, --lr, 1e-3, --epochs, 30]
workdir: code
env: {EPOCHS: "30", LR: 1e-3, MODE: 0644, EMPTY: ""}
secrets: [HF_TOKEN, DEPLOY_KEY=file]
setup: |
  module load cuda

  export A=1
smoke: python smoke.py
skip_smoke: true
nodes: 2
seed: 7
priority: normal
gpus: any:2
gpu: {min_free: 12GB, wait: 1h30m, share: true, memory: 10GB, max_hold: 24h, idle_window: 5s, memory_share: 0.9,
  verify: true}
timeout: 4h
timeouts: {preflight: 1m, run: 3h, postflight: 2m}
grace: 45s
grace_max: 20m
expected: 1h
retries: {max: 3, wait: 1m, out_of_memory: larger}
stall: {no_progress: 30m, no_output: 1h, startup: 3h, action: stop}
ptrace: none
limits: {memory: 8GiB, swap: 1GiB, memory_high: 7GiB, cpus: 1.5, cpu_weight: 50, affinity: "0-2,5", tasks: 500,
         open_files: 4096, unenforced: warn}
containment: cgroup_v2
on_supervisor_death: kill
inputs: [conf/a.yaml, /etc/hosts]
config: conf/a.yaml
data: [~/data]
artifacts: ["artifacts/result.json", artifacts/./model.npz]
disk: {min_free: 2GB, min_free_inodes: 10000, checkpoint_size: 1GB, keep: 3, paths: [scratch],
       expected_files: 5000, scratch: ["tmp/**", "*.part"]}
results: {to: durable, paths: [artifacts/./model], tries: 5, wait: 1m, prune_scratch: true}
caches: big
checkpoints: {every: 10m, keep: 4, mirror: durable, interruptions: 6h}
output: {max: 50MiB}
health_every: 10s
tracker: none
threads: 4
container: {image: "org/train:1", runtime: podman, binds: ["/data:/data", "/scratch:/s:rw"], shm: 8GiB, user: image,
            entrypoint: keep, init: false, network: none, env: [HF_HOME], moving_tag: true}
login_shell: true
pty: true
allow_install: true
notify:
  command: [notify-send, holdfast]
  webhook: "https://example.org/hook"
  slack: [secret:SLACK, secret:SLACK_2]
  discord: secret:DISCORD
  ntfy: https://ntfy.example.org/runs
  email: me@example.org
  email_from: box@example.org
  smtp: mail.example.org:465
  smtp_user: me
  smtp_password: secret:MAIL
  smtp_tls: tls
  every: 6h
  on: [running, ended]
slurm: {partition: gpu, t: 240, exclusive: true}
"""

EVERYTHING_TOML = """\
name = "resnet-50"
command = ["python", "train.py", "--lr", 1e-3, "--epochs", 30]
workdir = "code"
seed = 7
secrets = ["HF_TOKEN", "DEPLOY_KEY=file"]
setup = ["module load cuda", "export A=1"]
smoke = ["python", "smoke.py"]
skip_smoke = true
nodes = 2
priority = "normal"
gpus = "any:2"
timeout = "4h"
grace = 45
grace_max = "20m"
expected = "1h"
ptrace = "none"
caches = "big"
containment = "cgroup_v2"
on_supervisor_death = "kill"
inputs = ["conf/a.yaml", "/etc/hosts"]
config = "conf/a.yaml"
data = "~/data"
artifacts = ["artifacts/result.json", "artifacts/./model.npz"]
health_every = 10
tracker = "none"
threads = 4
login_shell = true
pty = true
allow_install = true
env = { EPOCHS = "30", LR = 1e-3, MODE = "0644", EMPTY = "" }
output = { max = "50MiB" }
[gpu]
min_free = "12GB"
wait = "1h30m"
share = true
memory = "10GB"
max_hold = "24h"
idle_window = 5
memory_share = 0.9
verify = true
[container]
image = "org/train:1"
runtime = "podman"
binds = ["/data:/data", "/scratch:/s:rw"]
shm = "8GiB"
user = "image"
entrypoint = "keep"
init = false
network = "none"
env = ["HF_HOME"]
moving_tag = true
[retries]
max = 3
wait = "1m"
out_of_memory = "larger"

[stall]
no_progress = "30m"
no_output = "1h"
startup = 10800
action = "stop"
[timeouts]
preflight = "1m"
run = "3h"
postflight = "2m"
[limits]
memory = "8GiB"
swap = "1GiB"
memory_high = 7516192768
cpus = 1.5
cpu_weight = 50
affinity = [0, 1, 2, 5]
tasks = 500
open_files = 4096
unenforced = "warn"
[disk]
min_free = "2GB"
min_free_inodes = 10000
checkpoint_size = "1GB"
keep = 3
paths = ["scratch"]
expected_files = 5000
scratch = ["tmp/**", "*.part"]
[results]
to = "durable"
paths = "artifacts/model"
tries = 5
wait = 60
prune_scratch = true
[checkpoints]
every = "600s"
keep = 4
mirror = "durable"
interruptions = 21600
[notify]
command = "notify-send holdfast"
webhook = ["https://example.org/hook"]
slack = ["secret:SLACK", "secret:SLACK_2"]
discord = ["secret:DISCORD"]
ntfy = "https://ntfy.example.org/runs"
email = ["me@example.org"]
email_from = "box@example.org"
smtp = "mail.example.org:465"
smtp_user = "me"
smtp_password = "secret:MAIL"
smtp_tls = "tls"
every = "21600s"
on = ["running", "ended"]
[slurm]
partition = "gpu"
time = 240
exclusive = true
"""


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Path]:
    """Write a job file in a directory of its own."""

    def write(text: str, name: str = "job.yaml") -> Path:
        path = tmp_path / "jobs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


def read(path: Path, **options: Node) -> JobSpec:
    return read_job(str(path), options)


def refusal(path: Path) -> list[str]:
    """The lines of the error, without the file's directory."""
    with pytest.raises(HoldfastError) as caught:
        read(path)
    return str(caught.value).replace(f"{path.parent}/", "").splitlines()


@pytest.mark.parametrize(("text", "name"), [(EVERYTHING_YAML, "job.yaml"), (EVERYTHING_TOML, "job.toml")])
def test_every_key_reaches_its_field(text: str, name: str, job: Callable[..., Path]) -> None:
    path = job(text, name)
    base = str(path.parent)
    spec = read(path)
    assert spec == JobSpec(
        name="resnet-50",
        command=("python", "train.py", "--lr", "1e-3", "--epochs", "30"),
        workdir=f"{base}/code",
        env={"EPOCHS": "30", "LR": "1e-3", "MODE": "0644", "EMPTY": ""},
        gpus=GpuRequest(count=2),
        gpu=GpuOptions(12 * 1000**3, 5400.0, True, 86400.0, 5.0, 0.9, memory_bytes=10 * 1000**3),
        timeouts=Timeouts(60.0, 10800.0, 120.0, 14400.0),
        grace_s=45.0,
        grace_max_s=1200.0,
        limits=Limits(
            8 * 1024**3, 7 * 1024**3, 1.5, 50, (0, 1, 2, 5), 500, 4096, UnenforcedPolicy.WARN, swap_bytes=1024**3
        ),
        priority=Priority.NORMAL,
        containment=IsolationLevel.CGROUP_V2,
        on_supervisor_death=OrphanPolicy.KILL,
        inputs=(f"{base}/conf/a.yaml", "/etc/hosts"),
        config=f"{base}/conf/a.yaml",
        data=(str(Path.home() / "data"),),
        artifacts=("artifacts/result.json", "artifacts/model.npz"),
        results=Results(f"{base}/durable", ("artifacts/model",), 5, 60.0, prune_scratch=True),
        disk=DiskNeeds(2 * 1000**3, 10000, 1000**3, 3, (f"{base}/scratch",), 5000, ("tmp/**", "*.part")),
        checkpoints=Checkpoints("600s", 4, f"{base}/durable", 21600.0),
        caches=f"{base}/big",
        expected_s=3600.0,
        retries=Retries(3, 60.0, OutOfMemory.LARGER),
        stall=StallOptions(1800.0, 3600.0, 10800.0, StallAction.STOP),
        ptrace=PtraceScope.NONE,
        output_max_bytes=50 * 1024**2,
        health_every_s=10.0,
        tracker=TrackerMode.NONE,
        threads=4,
        login_shell=True,
        pty=True,
        allow_install=True,
        container=ContainerSpec(
            "org/train:1",
            RuntimeName.PODMAN,
            ("/data:/data:ro", "/scratch:/s:rw"),
            8 * 1024**3,
            ContainerUser.IMAGE,
            EntryPoint.KEEP,
            init=False,
            network="none",
            env=("HF_HOME",),
            moving_tag=True,
        ),
        notify=Notify(("notify-send", "holdfast"), "https://example.org/hook", ("running", "ended")),
        channels=Channels(
            slack=("secret:SLACK", "secret:SLACK_2"),
            discord=("secret:DISCORD",),
            ntfy=("https://ntfy.example.org/runs",),
            email=("me@example.org",),
            email_from="box@example.org",
            smtp="mail.example.org:465",
            smtp_user="me",
            smtp_password="secret:MAIL",
            smtp_tls=SmtpTls.TLS,
            every="21600s",
        ),
        seed=7,
        secrets=("HF_TOKEN", "DEPLOY_KEY=file"),
        setup=("module load cuda", "export A=1"),
        smoke=("python", "smoke.py"),
        skip_smoke=True,
        nodes=2,
        slurm={"partition": "gpu", "time": "240", "exclusive": ""},
    )
    plain = JobSpec("x", ("x",), "/")
    same = [field.name for field in fields(spec) if getattr(spec, field.name) == getattr(plain, field.name)]
    assert same == [], "this test must state every field as something else than its default"


FOR_NO_SHELL = r"""a --x='c && d' \; "a && b" 'x;' http://x?a=1&b=2"""


def test_silence_is_the_documented_default(job: Callable[..., Path]) -> None:
    assert read(job(f"command: {FOR_NO_SHELL}\n")).command[1:5] == ("--x=c && d", ";", "a && b", "x;")
    path = job("command: python3 -u train.py --x 'a b'\n")
    command = ("python3", "-u", "train.py", "--x", "a b")
    assert read(path) == JobSpec(name="train", command=command, workdir=str(path.parent))


@pytest.mark.parametrize(
    ("written", "seconds"), [("off", 0.0), ("'off'", 0.0), ("0", 0.0), ("auto", None), ("~", None), ("90s", 90.0)]
)
def test_a_clock_is_switched_off_by_the_word_for_it(
    written: str, seconds: float | None, job: Callable[..., Path]
) -> None:
    assert read(job(f"command: x\nstall: {{no_progress: {written}}}\n")).stall.no_progress_s == seconds


def test_none_and_auto_and_null_take_the_default_back(job: Callable[..., Path]) -> None:
    path = job(
        "command: x\ntimeout: none\ngrace: auto\nthreads: ~\ncontainer: {image: null, shm: auto}\n"
        "gpu: {max_hold: none}\nlimits:\nsmoke: none\nsecrets: none\nsetup: none\ninputs: none\nartifacts: none\n"
        "notify: {command: none, email: none}\n"
    )
    assert read(path) == JobSpec(name="x", command=("x",), workdir=str(path.parent))


@pytest.mark.requirement("CKPT-09")
@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        ("auto", "auto"),
        ("10m", "600s"),
        ("1.5h", "5400s"),
        ("12d", "1036800s"),
        ("500", "500 steps"),
        ("'500'", "500 steps"),
        ("500 steps", "500 steps"),
        ("script", None),
        ("~", None),
    ],
)
def test_CKPT_09_how_often_is_a_time_a_number_of_steps_or_auto(
    written: str, read_as: str | None, job: Callable[..., Path]
) -> None:
    assert read(job(f"command: x\ncheckpoints: {{every: {written}}}\n")).checkpoints.every == read_as


@pytest.mark.requirement("PRE-02")
def test_PRE_02_every_mistake_is_named_at_once_with_file_line_and_key(job: Callable[..., Path]) -> None:
    path = job(
        "name: a b\n"
        "command: [python, train.py]\n"
        "gpu:\n"
        "  min_fee: 10GB\n"
        "  share: yes please\n"
        "gpus: -1\n"
        "timeout: 4x\n"
        "timeout: 3h\n"
        "priority: highh\n"
        "limits: {memory: lots, cpus: '2'}\n"
        "dat: 1\n"
        "min_free: 3GB\n"
    )
    assert refusal(path) == [
        (
            "job.yaml:1: name: 'a b' is not a name: 1 to 48 letters, digits, dots, dashes and underscores, "
            "a letter or digit first"
        ),
        "job.yaml:4: gpu.min_fee: unknown key; did you mean min_free?",
        "job.yaml:5: gpu.share: expected true or false, found the text 'yes please' for gpu.share",
        "job.yaml:6: gpus: -1 is not understood; write a count (2 or any:2), indexes (0,1) or UUIDs (GPU-..., MIG-...)",
        "job.yaml:7: timeout: '4x' is not a duration; write it like 90s, 15m, 1h30m or 7d",
        "job.yaml:8: timeout: written twice; the first is in line 7",
        "job.yaml:9: priority: 'highh' is not one of auto, background, low, normal",
        "job.yaml:10: limits.memory: 'lots' is not a size; write it like 512MB, 10GB or 8GiB",
        "job.yaml:10: limits.cpus: expected a number, found the text '2'",
        "job.yaml:11: dat: unknown key; did you mean data?",
        "and 1 more",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "job.yaml: is empty; a job file needs at least `command: [...]`"),
        ("# only a comment\n", "job.yaml: is empty; a job file needs at least `command: [...]`"),
        ("- a\n", "job.yaml:1: a job file is a mapping of keys, this is a list"),
        ("just words\n", "job.yaml:1: a job file is a mapping of keys, this is the text 'just words'"),
        ("name: x\n", "job.yaml: command: no command; say what to run"),
        ("command: []\n", "job.yaml:1: command: has no command"),
        ("command: ['']\n", "job.yaml:1: command: has no command"),
        (
            "command: 'a \"b'\n",
            "job.yaml:1: command: cannot be split into words: No closing quotation; write it as a list",
        ),
        (
            "command: 'cd x; make'\n",
            "job.yaml:1: command: x; is for a shell, and none reads this; write: sh -c 'cd x; make'",
        ),
        (
            "command: x\nsmoke: a && b\n",
            "job.yaml:2: smoke: && is for a shell, and none reads this; write: sh -c 'a && b'",
        ),
        (
            "command: python x.py $LR\n",
            "job.yaml:1: command: $LR is for a shell, and none reads this; write: sh -c 'python x.py $LR'",
        ),
        (
            'command: x --at "$(date)"\n',
            "job.yaml:1: command: $(date) is for a shell, and none reads this; write: sh -c 'x --at \"$(date)\"'",
        ),
        (
            "command: LR=1 python x.py\n",
            "job.yaml:1: command: LR= sets a variable, which is for a shell; write it below `env`: {LR: ...}",
        ),
        ("command: [a, [b]]\n", "job.yaml:1: command: expected a word, found a list; put quotes around it"),
        (
            "command:\n- a\n- yes\n",
            "job.yaml:3: command: expected a word, found yes (a truth value); put quotes around it",
        ),
        ("command: x\nname: 12\n", "job.yaml:2: name: expected text, found the number 12; put quotes around it"),
        ("command: x\nname:\n", "job.yaml:2: name: has no value; remove the key to take its default"),
        (
            "command: x\ngpu: 2\n",
            (
                "job.yaml:2: gpu: expected a mapping with min_free, wait, share, memory, max_hold, idle_window, "
                "memory_share, verify, found the number 2; did you mean gpus: 2?"
            ),
        ),
        ("command: x\ngpu: {count: 2}\n", "job.yaml:2: gpu.count: unknown key here; did you mean gpus?"),
        (
            "command: x\nmemory: 5GB\n",
            "job.yaml:2: memory: unknown key here; did you mean gpu.memory or limits.memory?",
        ),
        ("command: x\nzzz: 1\n", "job.yaml:2: zzz: unknown key; `holdfast schema` lists the keys"),
        ("command: x\noutput: {zzz: 1}\n", "job.yaml:2: output.zzz: unknown key; there are max"),
        (
            "command: x\nmin_free: 1GB\n",
            "job.yaml:2: min_free: unknown key here; did you mean gpu.min_free or disk.min_free?",
        ),
        ("command: x\ngpus: [0, 0]\n", "job.yaml:2: gpus: [0, 0] names 0 twice"),
        (
            "command: x\ngpus: yes\n",
            ("job.yaml:2: gpus: expected a count, any:N, indexes or UUIDs of cards, found yes (a truth value)"),
        ),
        ("command: x\nseed: '3'\n", "job.yaml:2: seed: expected a whole number, found the text '3'; remove the quotes"),
        ("command: x\ndisk: {keep: 0}\n", "job.yaml:2: disk.keep: 0 is too small; the least is 1"),
        (
            "command: x\nlimits: {cpu_weight: 10001}\n",
            ("job.yaml:2: limits.cpu_weight: 10001 is too large; the most is 10000"),
        ),
        ("command: x\ngpu: {memory_share: 1.5}\n", "job.yaml:2: gpu.memory_share: 1.5 is too large; the most is 1"),
        (
            "command: x\ncheckpoints: {every: 0}\n",
            "job.yaml:2: checkpoints.every: every 0 steps is no rhythm; the least is 1",
        ),
        (
            "command: x\ncheckpoints: {every: 500ms}\n",
            "job.yaml:2: checkpoints.every: 500ms is too often; the least is 1s",
        ),
        (
            "command: x\ncheckpoints: {every: often}\n",
            (
                "job.yaml:2: checkpoints.every: expected auto, a duration with its unit like 10m, "
                "or a number of steps like 500, found the text 'often'"
            ),
        ),
        (
            "command: x\ncheckpoints: {interruptions: 0s}\n",
            "job.yaml:2: checkpoints.interruptions: 0s is too short; the least is 1 s",
        ),
        ("command: x\nlimits: {cpus: .inf}\n", "job.yaml:2: limits.cpus: expected a number, found the text '.inf'"),
        (
            "command: x\nlimits: {affinity: 3-1}\n",
            ("job.yaml:2: limits.affinity: '3-1' is not a CPU number or a range like 0-3"),
        ),
        (
            "command: x\ncontainment: cgroups_v2\n",
            (
                "job.yaml:2: containment: 'cgroups_v2' is not one of auto, "
                "pid_namespace, cgroup_v2, cgroup_v1, subreaper, process_group; did you mean cgroup_v2?"
            ),
        ),
        (
            "command: x\nartifacts: /tmp/x\n",
            (
                "job.yaml:2: artifacts: '/tmp/x' leaves the run directory; write it relative "
                "to that, like artifacts/result.json"
            ),
        ),
        (
            "command: x\nartifacts:\n- a\n- b/../../x\n",
            (
                "job.yaml:4: artifacts: 'b/../../x' leaves the run directory; "
                "write it relative to that, like artifacts/result.json"
            ),
        ),
        ("command: x\ninputs: [3]\n", "job.yaml:2: inputs: expected a list of texts, found the number 3 for inputs"),
        (
            "command: x\nnotify: {on: [done]}\n",
            (
                "job.yaml:2: notify.on: 'done' is not one of waiting, starting, running, stopping, alert, ended, "
                "failed, group, none"
            ),
        ),
        (
            "command: x\nnotify: {webhook: 'https://u:p@example.org'}\n",
            (
                "job.yaml:2: notify.webhook: expected a URL that "
                "begins with https:// or http://, without a user or password in it, or secret:NAME"
            ),
        ),
        (
            "command: x\nnotify: {slack: 'https://hooks.slack.com/services/T0/B0/XX'}\n",
            (
                "job.yaml:2: notify.slack: is an address that is a secret, and jobs are recorded; give it to the box "
                "once: holdfast secret push PLACE NAME (`local` is this machine), and write secret:NAME"
            ),
        ),
        (
            "command: x\nnotify: {every: often}\n",
            (
                "job.yaml:2: notify.every: expected a duration with its unit like 10m, or a number of steps or epochs "
                "like 500 steps, found the text 'often'"
            ),
        ),
        (
            "command: x\ntimeout: [1]\n",
            "job.yaml:2: timeout: expected a duration like 90s, 15m, 1h30m or 7d, found a list",
        ),
        ("command: x\noutput: {max: 1KB}\n", "job.yaml:2: output.max: 1KB is too small; the least is 64 KiB"),
        ("command: x\nenv: {A: yes}\n", 'job.yaml:2: env.A: yes is a truth value, not text; write it in quotes: "yes"'),
        ("command: x\nenv: {A: }\n", 'job.yaml:2: env.A: has no value; write "" for an empty one'),
        ("command: x\nenv: {A-B: 1}\n", "job.yaml:2: env.A-B: is not a variable's name (letters, digits, underscores)"),
        ("command: x\nenv: {A: [1]}\n", "job.yaml:2: env.A: expected text, found a list"),
        ("command: x\nenv: [A]\n", "job.yaml:2: env: expected a mapping NAME: value, found a list"),
        ("command: x\nenv:\n  A: 1\n  A: 2\n", "job.yaml:4: env.A: written twice"),
        (
            "command: x\nlimits: {memory: 1GB, memory_high: 2GB}\n",
            ("job.yaml: limits.memory_high: is above limits.memory, so it would never act"),
        ),
        (
            "command: x\ntimeout: 1h\ntimeouts: {run: 2h}\n",
            ("job.yaml: timeouts.run: is longer than timeout, the deadline of the whole attempt"),
        ),
        (
            "command: x\ntimeout: 0\n",
            "job.yaml: timeout: is 0, so its time would be up before it began; none is no limit",
        ),
        (
            "command: x\ngpu: {max_hold: 0s}\n",
            "job.yaml: gpu.max_hold: is 0, so its time would be up before it began; none is no limit",
        ),
        ("command: x\ngrace: 11m\n", "job.yaml: grace: is longer than grace_max (600 s)"),
    ],
)
def test_a_mistake_is_said_in_one_line(text: str, line: str, job: Callable[..., Path]) -> None:
    assert refusal(job(text)) == [line]


def test_toml_mistakes_have_their_lines_too(job: Callable[..., Path]) -> None:
    path = job('command = "x"\n[gpu]\n# here\nmin_fee = "1GB"\n[limits]\ncpus = nan\n', "job.toml")
    assert refusal(path) == [
        "job.toml:4: gpu.min_fee: unknown key; did you mean min_free?",
        "job.toml:6: limits.cpus: expected a number, found the number nan",
    ]


def test_the_error_lists_its_problems_for_programs(job: Callable[..., Path]) -> None:
    path = job("command: x\ndat: 1\n")
    with pytest.raises(JobFileError) as caught:
        read(path)
    message = "unknown key; did you mean data?"
    assert caught.value.details["problems"] == [{"where": f"{path}:2", "key": "dat", "message": message, "line": 2}]
    assert caught.value.exit_code == 65


@pytest.mark.requirement("OBS-04")
@pytest.mark.parametrize(
    "env",
    [
        "HF_TOKEN: abc",
        "WANDB_API_KEY: '0123'",
        "X: ghp_0123456789abcdefghijABCDEFGHIJ012345",
        "DATA: https://b.example/x?X-Amz-Signature=c4n4ry51c4n4ry51",
        "ARGS: --api-key=c4n4ry51",
    ],
)
def test_OBS_04_secrets_in_a_job_file_are_refused_and_not_repeated(env: str, job: Callable[..., Path]) -> None:
    name, value = env.split(": ")
    (line,) = refusal(job(f"command: x\nenv:\n  {env}\n"))
    assert line.startswith(
        f"job.yaml:3: env.{name}: looks like a secret, which would be stored; leave it out and `holdfast secret push"
    )
    assert value.strip("'") not in line


@pytest.mark.requirement("OBS-04")
def test_OBS_04_a_secret_in_a_line_of_setup_is_refused_and_not_repeated(job: Callable[..., Path]) -> None:
    (line,) = refusal(job("command: x\nsetup: |\n  module load cuda\n  export DATA_KEY=1 API_KEY=c4n4ry51\n"))
    assert line.startswith("job.yaml:2: setup: holds what looks like a secret, which would be stored")
    assert "c4n4ry" not in line


def test_options_stand_over_the_file_and_variables_add_up(job: Callable[..., Path], tmp_path: Path) -> None:
    path = job("command: x\ntimeout: 1h\nenv: {A: '1', B: '1'}\ninputs: [a, b]\nconfig: c.json\n")
    options = {
        "timeout": Node("none", "--timeout", text="none"),
        "env": Node({"B": Node("2", "--env", text="2")}, "--env"),
        "inputs": Node([Node("/z", "--input", text="/z")], "--input"),
    }
    spec = read_job(str(path), options, cwd=str(tmp_path))
    assert spec.timeouts.total_s is None
    assert spec.env == {"A": "1", "B": "2"}
    assert spec.inputs == ("/z",)
    assert spec.config == f"{path.parent}/c.json"


def test_relative_paths_count_from_where_they_are_written(
    job: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = job("command: x\ninputs: [a]\n")
    data = Node([Node("d", "--data", text="d")], "--data")
    spec = read_job("jobs/job.yaml", {"data": data}, cwd=str(tmp_path))
    assert (spec.inputs, spec.data, spec.workdir) == ((f"{path.parent}/a",), (f"{tmp_path}/d",), str(path.parent))
    bare = read_job(None, {}, command=("x",), cwd=str(tmp_path))
    assert bare.workdir == str(tmp_path)


@each(
    ("gpus", "option", "words"),
    [
        (
            "0",
            "gpu.memory",
            "--gpu-memory: is about cards, and --gpus 0 is a count, no card; one card: --gpus 1, card 0",
        ),
        ("0", "gpu.share", "--share: is about cards, and --gpus 0 is a count"),
        (None, "gpu.memory", "--gpu-memory: is about cards, and no card is asked for (--gpus)"),
    ],
)
def test_how_cards_are_used_is_refused_where_none_is_asked_for(
    job: Callable[..., Path], gpus: str | None, option: str, words: str
) -> None:
    said = {"gpu.memory": Node("10GiB", "--gpu-memory", text="10GiB"), "gpu.share": Node(True, "--share")}
    options = {option: said[option], **({} if gpus is None else {"gpus": Node(gpus, "--gpus", text=gpus)})}
    with pytest.raises(UsageError, match=re.escape(words)):
        read_job(None, options, command=("x",))
    one = {**options, "gpus": Node("0,", "--gpus", text="0,")}
    assert read_job(None, one, command=("x",)).gpus.devices == ("0",)
    kept = job("command: x\ngpu: {memory: 10GiB, share: true}\n")
    assert read_job(str(kept), {"gpus": Node("0", "--gpus", text="0")}).gpus.wanted == 0


def test_exactly_one_command(job: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match=r"job.yaml:1 has a command, and there is another one behind `--`"):
        read_job(str(job("command: x\n")), {}, command=("y",))
    assert read_job(str(job("name: z\n")), {}, command=("y",)).command == ("y",)
    with pytest.raises(UsageError, match="no command"):
        read_job(None, {})


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("python", "train.py"), "train"),
        (("/usr/bin/python3.11", "-u", "src/train_all.py", "x.py"), "train_all"),
        (("python", "-m", "pkg.train"), "pkg.train"),
        (("python", "-c", "print(1)", "a.py"), "python"),
        (("bash", "run.sh"), "run"),
        (("./train"), "train"),
        (("/opt/my tool",), "my-tool"),
        (("---",), "run"),
    ],
)
def test_a_run_is_named_after_what_it_runs(command: Any, name: str) -> None:
    assert name_from_command((command,) if isinstance(command, str) else command) == name


def test_bad_job_files_end_with_65_and_start_nothing(
    holdfast: Command, job: Callable[..., Path], isolated_environment: dict[str, str]
) -> None:
    path = job("command: x\ndat: 1\n")
    for verb in ("run", "preflight"):
        ended = holdfast(verb, str(path))
        assert (ended.code, ended.out) == (65, "")
        assert ended.err.startswith(f"holdfast: {path}:2: dat: unknown key; did you mean data?\n  nothing was started")
    assert not list(Path(isolated_environment["HOLDFAST_RUNS"]).iterdir())
