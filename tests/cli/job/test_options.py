"""Every key as an option: the same notations, the same words, and the command behind the dashes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click
import pytest

from holdfast.cli.errors import HELP_ALL, translate
from holdfast.cli.job.options import JobCommand, job_options, resolve_job
from holdfast.cli.job.schema import KEYS, Kind
from holdfast.core.job.job_hash import hash_job
from holdfast.model.errors import JobFileError, UsageError
from holdfast.model.gpu import GpuRequest
from tests.cli.job.test_jobfile import EVERYTHING_YAML
from tests.each import each

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.model.job import JobSpec

pytestmark = pytest.mark.cli


@click.command(cls=JobCommand)
@click.argument("job", required=False)
@job_options
def resolve(job: str | None, command: tuple[str, ...], **options: object) -> JobSpec:
    """Only resolve."""
    return resolve_job(job, command, options)


def spec_of(*args: str) -> JobSpec:
    spec = resolve.main(list(args), standalone_mode=False)
    assert spec is not None
    return spec  # type: ignore[no-any-return]  # what the function above returns


EVERY_OPTION = {
    "name": ["resnet-50"],
    "workdir": ["code"],
    "env": ["EPOCHS=30", "LR=1e-3", "MODE=0644", "EMPTY="],
    "secret": ["HF_TOKEN", "DEPLOY_KEY=file"],
    "setup": ["module load cuda", "export A=1"],
    "smoke": ["python smoke.py"],
    "skip-smoke": [],
    "nodes": ["2"],
    "seed": ["7"],
    "priority": ["normal"],
    "gpus": ["any:2"],
    "min-free": ["12GB"],
    "wait": ["1h30m"],
    "share": [],
    "max-hold": ["24h"],
    "idle-window": ["5s"],
    "gpu-memory-share": ["0.9"],
    "gpu-memory": ["10GB"],
    "gpu-verify": [],
    "timeout": ["4h"],
    "timeout-preflight": ["1m"],
    "timeout-run": ["3h"],
    "timeout-postflight": ["2m"],
    "grace": ["45s"],
    "grace-max": ["20m"],
    "expected": ["1h"],
    "retries": ["3"],
    "retry-wait": ["1m"],
    "retry-out-of-memory": ["larger"],
    "stall-no-progress": ["30m"],
    "stall-no-output": ["1h"],
    "stall-startup": ["3h"],
    "stall-action": ["stop"],
    "ptrace": ["none"],
    "limit-memory": ["8GiB"],
    "limit-memory-high": ["7GiB"],
    "limit-swap": ["1GiB"],
    "limit-cpus": ["1.5"],
    "limit-cpu-weight": ["50"],
    "limit-affinity": ["0-2,5"],
    "limit-tasks": ["500"],
    "limit-open-files": ["4096"],
    "limit-unenforced": ["warn"],
    "containment": ["cgroup_v2"],
    "on-supervisor-death": ["kill"],
    "input": ["conf/a.yaml", "/etc/hosts"],
    "config": ["conf/a.yaml"],
    "data": ["~/data"],
    "artifact": ["artifacts/result.json", "artifacts/./model.npz"],
    "results-to": ["durable"],
    "results-path": ["artifacts/model"],
    "results-tries": ["5"],
    "results-wait": ["1m"],
    "results-prune-scratch": [],
    "disk-min-free": ["2GB"],
    "disk-min-free-inodes": ["10000"],
    "checkpoint-size": ["1GB"],
    "checkpoint-keep": ["3"],
    "disk-path": ["scratch"],
    "expected-files": ["5000"],
    "scratch": ["tmp/**", "*.part"],
    "caches": ["big"],
    "checkpoint-every": ["10m"],
    "keep-last": ["4"],
    "checkpoint-mirror": ["durable"],
    "interruptions": ["6h"],
    "output-max": ["50MiB"],
    "health-every": ["10s"],
    "tracker": ["none"],
    "threads": ["4"],
    "image": ["org/train:1"],
    "runtime": ["podman"],
    "bind": ["/data:/data", "/scratch:/s:rw"],
    "shm": ["8GiB"],
    "container-user": ["image"],
    "entrypoint": ["keep"],
    "no-container-init": [],
    "network": ["none"],
    "pass-env": ["HF_HOME"],
    "moving-tag": [],
    "login-shell": [],
    "pty": [],
    "allow-install": [],
    "notify-command": ["notify-send holdfast"],
    "notify-webhook": ["https://example.org/hook"],
    "notify-slack": ["secret:SLACK", "secret:SLACK_2"],
    "notify-discord": ["secret:DISCORD"],
    "notify-ntfy": ["https://ntfy.example.org/runs"],
    "notify-email": ["me@example.org"],
    "notify-email-from": ["box@example.org"],
    "notify-smtp": ["mail.example.org:465"],
    "notify-smtp-user": ["me"],
    "notify-smtp-password": ["secret:MAIL"],
    "notify-smtp-tls": ["tls"],
    "notify-every": ["6h"],
    "notify-on": ["running", "ended"],
    "slurm": ["partition=gpu", "t=240", "exclusive"],
}


def test_the_options_say_everything_that_a_file_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {name.removeprefix("no-") for name in EVERY_OPTION} == {key.option for key in KEYS if key.option}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(EVERYTHING_YAML)
    words = [word for name, values in EVERY_OPTION.items() for value in values or [""] for word in (f"--{name}", value)]
    args = [word for word in words if word]
    args[args.index("--env") : args.index("--env")] = ["--env", "EMPTY="]
    command = ["python", "train.py", "--lr", "1e-3", "--epochs", "30"]
    assert spec_of(*args, "--", *command) == spec_of("job.yaml")


def test_options_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("command: x\ngpus: 2\ngpu: {share: true, wait: 1h}\ntimeout: 1h\npty: true\n")
    spec = spec_of(str(path), "--gpus", "0,1", "--no-share", "--timeout", "none", "--no-pty")
    assert spec.gpus == GpuRequest(devices=("0", "1"))
    assert (spec.gpu.share, spec.gpu.wait_s, spec.timeouts.total_s, spec.pty) == (False, 3600.0, None, False)


def test_options_of_sbatch_stand_one_by_one_over_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("command: x\nslurm: {partition: gpu, t: 240}\n")
    assert spec_of(str(path), "--slurm", "time=10").slurm == {"partition": "gpu", "time": "10"}
    assert hash_job(spec_of(str(path))) == hash_job(spec_of(str(path), "--slurm", "time=10"))
    for below, above in (("requeue", "no-requeue"), ("no-requeue", "requeue")):
        path.write_text(f"command: x\nslurm: {{{below}: true, t: 240}}\n")
        assert spec_of(str(path), "--slurm", above).slurm == {"time": "240", above: ""}


@pytest.mark.requirement("SLM-01")
@pytest.mark.parametrize("both", [("requeue", "no-requeue"), ("no-requeue", "requeue")])
def test_requeue_and_no_requeue_are_refused_in_any_order(tmp_path: Path, both: tuple[str, str]) -> None:
    words = "requeue and no-requeue contradict each other; leave one of them out"
    with pytest.raises(UsageError, match=f"^--slurm: {words}$"):
        spec_of("--slurm", both[0], "--slurm", both[1], "--", "x")
    path = tmp_path / "job.yaml"
    path.write_text(f"command: x\nslurm:\n  {both[0]}: true\n  {both[1]}: true\n")
    with pytest.raises(JobFileError, match=rf"job\.yaml:\d: slurm: {words}"):
        spec_of(str(path))


@pytest.mark.parametrize(
    ("written", "line", "words"),
    [
        ("{partition: gpu,\n  array: 1-9}", 3, "--array is holdfast's own to say"),
        ("{no_such option: 1}", 2, "is no option of sbatch"),
        ("{partition: [a]}", 2, "partition: expected text, a number or true, found a list"),
        ("{p: a,\n  p: b}", 3, "p is written twice"),
        ("gpu", 2, "expected a mapping of sbatch's options"),
        ("{comment: 'HF_TOKEN=c4n4ry51'}", 2, "comment holds what looks like a secret"),
    ],
)
def test_a_mistake_in_options_of_sbatch_is_named_with_its_line(
    tmp_path: Path, written: str, line: int, words: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"command: x\nslurm: {written}\n")
    with pytest.raises(JobFileError) as caught:
        spec_of(str(path))
    assert f"job.yaml:{line}: slurm: " in str(caught.value)
    assert words in str(caught.value)


def test_the_question_to_the_jobs_torch_can_be_left_out() -> None:
    assert spec_of("--", "x").gpu.verify
    assert not spec_of("--no-gpu-verify", "--", "x").gpu.verify


@pytest.mark.parametrize("pattern", ["/tmp/x", "../x", "*", "**/*", "~/x", "a**"])
def test_a_pattern_that_could_name_anything_is_no_scratch(pattern: str) -> None:
    with pytest.raises(UsageError, match=r"^--scratch: "):
        spec_of("--scratch", pattern, "--", "x")


def test_what_stands_behind_the_dashes_is_the_jobs_untouched() -> None:
    command = ("train", "--gpus", "7", "--", "--json", "-h", "job.yaml")
    assert spec_of("--gpus", "1", "--", *command).command == command


@each(
    ("args", "message"),
    [
        (["--gpus", "x", "--", "true"], r"^--gpus: 'x' is not understood; write a count"),
        (["--timeout", "soon", "--", "true"], r"^--timeout: 'soon' is not a duration"),
        (["--timeout", "4x", "--seed", "a", "--", "true"], r"(?s)--seed: expected .*--timeout|--timeout.*--seed"),
        (["--env", "HF_TOKEN=abc", "--", "true"], r"^--env: env.HF_TOKEN: looks like a secret"),
        (["--env", "A", "--", "true"], r"^--env: 'A' is not NAME=VALUE"),
        (["--containment", "box", "--", "true"], r"^--containment: 'box' is not one of auto"),
        (["--artifact", "/x", "--", "true"], r"^--artifact: artifacts: '/x' leaves the run directory"),
        (["--limit-tasks", "1.5", "--", "true"], r"^--limit-tasks: expected a whole number"),
        (["--"], "nothing stands behind `--`"),
        ([], "no job: name a job file, or write a command behind `--`"),
        (["python", "train.py"], r"more than one job"),
    ],
)
def test_a_mistake_on_the_command_line_is_a_usage_error(args: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        spec_of(*args)


def test_a_command_without_dashes_is_told_about_them() -> None:
    for words in ("python train.py", "python train.py --lr 3", "torchrun --nproc_per_node=2 x.py", "python -c 1"):
        with pytest.raises(UsageError) as caught:
            spec_of("--gpus", "1", *words.split())
        assert caught.value.hint.startswith("write `--` before the command: ")
        assert caught.value.hint.endswith(f" --gpus 1 -- {words}")
    with pytest.raises(UsageError) as caught:
        spec_of("train.py", "--lr", "3")
    assert caught.value.hint.endswith(" -- python train.py --lr 3"), "a script that is no program"
    with pytest.raises(JobFileError, match=r"^python: no such job file") as missing:
        spec_of("python")
    assert "write `--` before it" in missing.value.hint
    with pytest.raises(JobFileError, match=r"^absent.yaml: no such job file") as missing:
        spec_of("absent.yaml", "--", "true")
    assert missing.value.hint.startswith("the command behind `--` needs none: leave 'absent.yaml' out")


@pytest.mark.parametrize(
    ("args", "page"),
    [
        (["--notify-on", "nope", "--", "true"], "--help-all"),
        (["--notify-onx", "ended", "--", "true"], "--help-all"),
        (["--timeout", "4x", "--", "true"], "--help"),
        (["--timeouts", "4h", "--", "true"], "--help"),
    ],
)
def test_a_hint_names_the_page_that_has_the_option(args: list[str], page: str) -> None:
    with pytest.raises((UsageError, click.UsageError)) as caught:
        spec_of(*args)
    hint = translate(caught.value, args).hint
    assert f"{page}`" in hint
    assert "write `--`" not in hint, "it is there"


def test_several_job_files_are_no_command() -> None:
    with pytest.raises(UsageError, match=r"^more than one job: a\.yaml, b\.toml$") as caught:
        spec_of("a.yaml", "b.toml")
    assert re.fullmatch(r"one at a time: (.+) a\.yaml; \1 b\.toml", caught.value.hint)
    for args in (["a.yaml", "--lr", "3"], ["--lr", "3", "python", "x.py"], ["a.yaml", "--lr", "3", "--", "python"]):
        with pytest.raises(click.NoSuchOption):
            spec_of(*args)


def test_mistakes_in_both_layers_are_told_together(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("command: x\ndat: 1\n")
    with pytest.raises(JobFileError) as caught:
        spec_of(str(path), "--timeout", "4x")
    assert str(caught.value).splitlines() == [
        "--timeout: '4x' is not a duration; write it like 90s, 15m, 1h30m or 7d",
        f"{path}:2: dat: unknown key; did you mean data?",
    ]


@each("key", [key for key in KEYS if key.option], ids=lambda key: key.option)
def test_the_help_page_has_each_option_with_its_default(key: Any) -> None:
    context = click.Context(resolve, info_name="run", terminal_width=100)
    context.meta[HELP_ALL] = True
    text = " ".join(resolve.get_help(context).split())
    assert f"--{key.option} " in text
    assert key.help.split(".")[0].split(";")[0] in text
    assert key.kind is Kind.COMMAND or f"[default: {key.default}]" in text
