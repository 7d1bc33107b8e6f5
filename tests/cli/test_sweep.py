"""``holdfast sweep``: which jobs come of a sweep, how their parameters reach the command, what is refused."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.render.sweep import print_rows
from holdfast.core.job.job_hash import hash_job
from holdfast.core.queue.results import ResultRow
from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.queue import JobState, QueuedJob
from holdfast.store.queue.queue import Queue
from tests.cli.queues import Said, find, no_worker, put, say
from tests.each import each

pytestmark = [pytest.mark.files, pytest.mark.requirement("QUEUE-02")]

__all__ = ["no_worker"]

JOB = "command: [sh, train.sh]\n"
RATES = "job: job.yaml\ngrid: {lr: [1e-3, 3e-4]}\n"
RUN = "20261120-104501-job-3fa2"


@pytest.fixture(autouse=True)
def _here(no_worker: str) -> None:
    """Every test is in a directory with a job and a script, and a queue that nobody works off."""
    write("job.yaml", JOB)
    write("train.sh", "exit 0\n")


def write(name: str, text: str) -> str:
    """A file of the current directory."""
    Path(name).write_text(text, encoding="utf-8")
    return name


def sweep(*arguments: str) -> Said:
    """Hand in, or say why not."""
    return say("sweep", *arguments)


def built(*arguments: str) -> dict[str, dict[str, Any]]:
    """Every job of a dry run by its name."""
    said = sweep(*arguments, "--dry-run", "--json")
    assert said.code == 0, said
    return {job["job"]: job for job in said.json()["jobs"]}


def jobs(group: str) -> dict[str, dict[str, Any]]:
    """The resolved jobs of a group's jobs."""
    with Queue() as queue:
        found = {}
        for job in queue.jobs(group=group):
            submission = queue.submission_of(job.id)
            found[job.name] = {**submission.base, **submission.jobs[0].change}
        return found


# ------------------------------------------------------------------------------------------------------------- jobs


def test_a_grid_makes_every_combination_with_values_as_written() -> None:
    jobs = built("job.yaml", "--grid", "lr=1e-3,3e-4", "--grid", "flag=no,off")
    assert list(jobs) == ["lr=1e-3_flag=no", "lr=1e-3_flag=off", "lr=3e-4_flag=no", "lr=3e-4_flag=off"]
    assert jobs["lr=1e-3_flag=no"]["command"] == ["sh", "train.sh", "--lr=1e-3", "--flag=no"]


def test_yaml_words_for_truth_stay_what_was_written() -> None:
    write("s.yaml", "job: job.yaml\ngrid: {flag: [no, off, 1e-3, 0o17, 2024-01-01, ~]}\n")
    assert [job["params"]["flag"] for job in built("s.yaml").values()] == [
        *("no", "off", "1e-3", "0o17", "2024-01-01", "~")
    ]


def test_an_image_is_a_name_or_a_file_from_where_the_person_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # no runtime is asked
    Path("below").mkdir()
    write("below/s.yaml", "job: {command: [/bin/true]}\ngrid: {lr: [1]}\n")
    where, name = os.getcwd(), f"x/y@sha256:{'b' * 64}"
    for group, image, meant in (("one", name, name), ("two", "a.sif", f"{where}/a.sif")):
        said = sweep("below/s.yaml", "--name", group, "--image", image, "--bind", "d:/d")
        assert said.code == 0, said
        (job,) = jobs(group).values()
        assert (job["container"]["image"], job["container"]["binds"]) == (meant, [f"{where}/d:/d:ro"])


def test_a_dry_run_shows_every_job_and_hands_nothing_in() -> None:
    write("s.yaml", f"{RATES}cost: 90s\n")
    said = sweep("s.yaml", "--dry-run")
    assert said.code == 0
    assert "lr=1e-3" in said.out
    assert "expected in all" in said.out
    with Queue() as queue:
        assert queue.jobs() == []


def test_jobs_are_handed_in_once_however_often_and_in_whatever_order() -> None:
    assert sweep("job.yaml", "--name", "rates", "--grid", "lr=1e-3,3e-4").code == 0
    put("rates/lr=1e-3", JobState.CLAIMED, run_id=RUN)
    for state in (JobState.RUNNING, JobState.PRODUCED, JobState.DONE):
        put("rates/lr=1e-3", state)
    said = sweep("job.yaml", "--name", "rates", "--grid", "lr=5e-4,3e-4,1e-3")
    assert said.code == 0
    assert "3 jobs in sweep rates (2 of them handed in before)" in said.out
    assert find("rates/lr=1e-3").state is JobState.DONE


@pytest.mark.requirement("QUEUE-09")
def test_a_job_that_left_the_file_stays_and_is_named() -> None:
    sweep("job.yaml", "--name", "rates", "--grid", "lr=1e-3,3e-4")
    said = sweep("job.yaml", "--name", "rates", "--grid", "lr=3e-4")
    assert "left as they are: lr=1e-3" in said.err
    assert find("rates/lr=1e-3").state is JobState.QUEUED


def test_a_known_name_with_another_configuration_is_refused() -> None:
    sweep("job.yaml", "--name", "rates", "--grid", "lr=1e-3")
    said = sweep("job.yaml", "--name", "rates", "--grid", "lr=1e-3", "--set", "epochs=5")
    assert said.code == 64
    assert "rates/lr=1e-3" in said.err


def test_the_hash_is_that_of_the_job_that_will_run() -> None:
    write("s.yaml", f"{RATES}overrides: [{{when: {{lr: 0.001}}, job: {{timeout: 2h, gpus: 0}}}}]\n")
    sweep("s.yaml")
    for name, job in jobs("s").items():
        assert find(f"s/{name}").sha256 == hash_job(wire.decode(JobSpec, job))


def test_a_job_knows_its_parameters_name_and_group() -> None:
    sweep("job.yaml", "--name", "rates", "--grid", "lr=1e-3", "--env", "A=1")
    env = jobs("rates")["lr=1e-3"]["env"]
    assert env == {"A": "1", "HOLDFAST_PARAM_LR": "1e-3", "HOLDFAST_JOB": "lr=1e-3", "HOLDFAST_GROUP": "rates"}


def test_placeholders_take_parameters_wherever_they_stand() -> None:
    write("s.yaml", 'job: {command: [sh, train.sh, "{lr}", "{job}"], env: {SEED: "{seed}"}, inputs: ["d/{seed}"]}\n'
          "grid: {lr: [1e-3], seed: [7]}\n")  # fmt: skip
    sweep("s.yaml")
    job = jobs("s")["lr=1e-3_seed=7"]
    assert job["command"] == ["sh", "train.sh", "1e-3", "lr=1e-3_seed=7"]
    assert job["env"]["SEED"] == "7"
    assert job["inputs"] == [f"{os.getcwd()}/d/7"]


def test_the_style_of_arguments_can_be_said() -> None:
    assert built("job.yaml", "--grid", "lr=1", "--arguments", "{name}={value}")["lr=1"]["command"][2:] == ["lr=1"]
    assert built("job.yaml", "--grid", "lr=1", "--arguments", "--{name} {value}")["lr=1"]["command"][2:] == [
        "--lr",
        "1",
    ]
    assert built("job.yaml", "--grid", "lr=1", "--arguments", "none")["lr=1"]["command"] == ["sh", "train.sh"]


@pytest.mark.requirement("QUEUE-08", "QUEUE-18")
def test_jobs_have_their_own_time_resources_and_cost() -> None:
    write(
        "s.yaml",
        """
job: {file: job.yaml, timeout: 1h}
grid: {width: [64, 1024]}
cost: 20m
exclude: [{width: 512}]
overrides:
  - {when: {width: 1024}, cost: 50m, params: {epochs: 50}, job: {timeout: 4h, limits: {cpus: 2}}}
jobs:
  - {name: quick, params: {width: 8}, cost: 1m, job: {timeout: 10m}}
""",
    )
    said = sweep("s.yaml")
    assert "exclude: fits no job" in said.err
    found = jobs("s")
    assert {name: job["timeouts"]["total_s"] for name, job in found.items()} == {
        "width=64": 3600.0,
        "width=1024": 14400.0,
        "quick": 600.0,
    }
    assert found["width=1024"]["limits"]["cpus"] == 2
    assert found["width=64"]["limits"]["cpus"] is None
    assert found["width=1024"]["command"][2:] == ["--width=1024", "--epochs=50"]
    assert [find(f"s/{name}").expected_s for name in found] == [1200.0, 3000.0, 60.0]


def test_rows_of_a_table_are_jobs() -> None:
    write("jobs.csv", "name;lr;seed;job.timeout;cost\r\n# why\r\nslow;1e-4;0;8h;50m\r\n\r\n;1e-3;1;;")
    sweep("job.yaml", "--name", "t", "--csv", "jobs.csv")
    found = jobs("t")
    assert list(found) == ["slow", "lr=1e-3_seed=1"]
    assert found["slow"]["timeouts"]["total_s"] == 28800.0
    assert find("t/slow").expected_s == 3000.0


# ----------------------------------------------------------------------------------------------------------- refused


@each(
    ("text", "line", "said"),
    [
        ("job: job.yaml\ngird: {lr: [1]}\n", 2, "did you mean grid?"),
        ("job: job.yaml\ntimeout: 2h\ngrid: {lr: [1]}\n", 2, "under `job:`"),
        ("job: {timeuot: 2h}\ngrid: {lr: [1]}\n", 1, "did you mean timeout?"),
        ("job: job.yaml\ngrid:\n  lr: [1e-3, 0.001]\n", 3, "one number"),
        ("job: job.yaml\ngrid:\n  lr: []\n", 3, "no values"),
        ("job: job.yaml\ngrid:\n  job: [1]\n", 3, "not free"),
        ("job: job.yaml\ngrid: {lr: [[1]]}\n", 2, "expected one value"),
        ("job: job.yaml\ngrid: {a: [1]}\ngrid: {a: [2]}\n", 3, "written twice"),
        ("job: job.yaml\njobs:\n  - {name: a/b}\n", 3, "no name for a job"),
        ("job: job.yaml\njobs:\n  - {params: {lr: 1}, job: {timeout: soon}}\n", 3, "timeout"),
        ("job: job.yaml\njobs:\n  - {params: {lr: 1}}\n  - {name: lr=1}\n", 4, "two jobs are called lr=1"),
        ("job: job.yaml\njobs:\n  - {}\n", 3, "params"),
        ("job: job.yaml\ngrid: {lr: [1]}\narguments: --lr\n", 3, "{value}"),
        ("job: job.yaml\ngrid: {lr: [1]}\nmax_parallel: 0\n", 3, "whole number"),
        ("job: job.yaml\ngrid: {lr: [1]}\nexclude: [{lr: 1}]\n", 0, "nothing is left"),
        ("job: job.yaml\n", 0, "nothing to vary"),
        ("- a\n", 0, "no mapping"),
    ],
)
def test_a_mistake_in_a_sweep_file_is_named_in_its_place(text: str, line: int, said: str) -> None:
    done = sweep(write("s.yaml", text))
    assert done.code == 65, done
    assert said in done.err
    assert not line or f"s.yaml:{line}: " in done.err


@each(
    ("arguments", "said"),
    [
        (("job.yaml",), "nothing is varied"),
        ((), "Usage"),
        (("--grid", "lr=1"), "no sweep"),
        (("job.yaml", "--grid", "lr"), "NAME=VALUE"),
        (("job.yaml", "--grid", "lr=1,,2"), "empty value"),
        (("job.yaml", "--grid", "lr=1", "--grid", "lr=2"), "twice"),
        (("job.yaml", "--grid", "lr=1,1.0"), "one number"),
        (("job.yaml", "--grid", "lr=1", "--set", "lr"), "NAME=VALUE"),
        (("job.yaml", "--grid", "api_key=a,b"), "secret"),
        (("job.yaml", "--grid", "lr=1", "--arguments", "x"), "{value}"),
        (("job.yaml", "--grid", "a=a/b,a-b"), "two jobs are called a=a-b"),
        (("job.yaml", "--name", "a/b", "--grid", "lr=1"), "no name"),
        (("--grid", "seed=1", "--", "sh", "train.sh", "{sead}"), "{seed}"),
        (("--grid", "seed=1", "--", "sh", "train.sh", "{config}"), "{config}"),
    ],
)
def test_a_mistake_on_the_command_line_is_refused(arguments: tuple[str, ...], said: str) -> None:
    done = sweep(*arguments)
    assert done.code in {64, 65}, done
    assert said in done.err


@each(
    ("name", "values"),
    [
        ("api_key", "horse-battery-1,horse-battery-2"),
        ("data", "https://b.example/x?sig=horse1battery,https://b.example/x?sig=horse2battery"),
        ("args", "--api-key=horse-battery-1,--api-key=horse-battery-2"),
    ],
)
def test_a_refused_secret_is_not_shown(name: str, values: str) -> None:
    done = sweep("job.yaml", "--grid", f"{name}={values}")
    assert done.code in {64, 65}, done
    assert f"{name} looks like a secret" in done.err
    assert "horse" not in done.err + done.out


@each(
    ("text", "said"),
    [
        ("lr,lr\n1,2\n", "twice"),
        ("lr,job.timeuot\n1,2h\n", "job.timeout"),
        ("lr,seed\n1\n", "jobs.csv:2: has 1 fields"),
        ('lr\n"1\n', "not valid CSV"),
        ("lr\n", "no jobs"),
        ("name,lr\na,1\na,2\n", "two jobs are called a"),
        ("cost,lr\nsoon,1\n", "jobs.csv:2"),
        ("job.timeout\n2h\n", "neither a name"),
    ],
)
def test_a_mistake_in_a_table_is_refused(text: str, said: str) -> None:
    done = sweep("job.yaml", "--csv", write("jobs.csv", text))
    assert done.code == 65, done
    assert said in done.err


@pytest.mark.requirement("QUEUE-03")
def test_two_jobs_with_one_output_directory_are_refused_until_they_have_their_own() -> None:
    command = ("--", "sh", "train.sh", "--output-dir")
    done = sweep("--grid", "lr=1,2", *command, "/data/out")
    assert done.code == 64
    assert "lr=1 and lr=2 would all write to /data/out" in done.err
    assert "{job}" in done.err
    assert sweep("--name", "own", "--grid", "lr=1,2", *command, "/data/out/{job}").code == 0
    assert sweep("--name", "both", "--grid", "lr=1,2", "--shared", "/data/out", *command, "/data/out").code == 0


# --------------------------------------------------------------------------------------------------- configurations


def write_configured(extra: str = "", words: str = "conf.yaml") -> None:
    write("conf.yaml", "epochs: 50\noptimizer:\nmodel: {width: 64}\n")
    write("s.yaml", f"job: {{command: [sh, train.sh, --config, {words}]}}\nconfig: conf.yaml\n{extra}")


def read_config(name: str) -> str:
    """The configuration that a job's command names."""
    job = jobs("s")[name]
    path = job["command"][3].removeprefix("--config=")
    assert path == job["config"]
    return Path(path).read_text(encoding="utf-8")


@pytest.mark.requirement("QUEUE-17")
def test_overlays_and_dotted_parameters_are_resolved_into_a_stored_file(no_worker: str) -> None:
    write_configured(
        "grid: {overlay: [short, long], optimizer.lr: [1e-3]}\noverlays: {short: {epochs: 5}, long: long.yaml}\n"
    )
    write("long.yaml", "epochs: 100\noptimizer: {name: sgd}\n")
    assert sweep("s.yaml").code == 0
    short, long = "overlay=short_optimizer.lr=1e-3", "overlay=long_optimizer.lr=1e-3"
    assert read_config(short) == "epochs: 5\noptimizer:\n  lr: 1.0e-3\nmodel:\n  width: 64\n"
    assert read_config(long) == "epochs: 100\noptimizer:\n  name: sgd\n  lr: 1.0e-3\nmodel:\n  width: 64\n"
    assert jobs("s")[short]["command"][2] == "--config"
    assert len(os.listdir(f"{no_worker}/configs")) == 2


@pytest.mark.requirement("QUEUE-17")
def test_a_resolved_configuration_is_frozen() -> None:
    write_configured("grid: {optimizer.lr: [1, 2]}\n")
    sweep("s.yaml")
    before = read_config("optimizer.lr=1")
    write("conf.yaml", "epochs: 7\n")
    assert read_config("optimizer.lr=1") == before
    assert sweep("s.yaml").code == 64, "the same names with other configurations"


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("grid: {overlay: [lnog]}\noverlays: {long: {epochs: 1}}\n", "did you mean long?"),
        ("grid: {epochs.x: [1]}\n", "single value"),
        ("grid: {model: [1]}\n", "is a mapping"),
        ("grid: {overlay: [a]}\noverlays: {a: {epochs: {x: 1}}}\n", "epochs is a single value below"),
        ("grid: {lr: [1]}\noverlays: {a: 5}\n", "expected a file or a mapping"),
    ],
)
def test_a_layer_that_does_not_fit_is_refused(extra: str, said: str) -> None:
    write_configured(extra)
    done = sweep("s.yaml")
    assert done.code == 65, done
    assert said in done.err


def test_a_program_in_place_of_a_sweep_file_gets_the_command_to_type() -> None:
    Path("train.py").write_text("print(1)\n")
    done = sweep("train.py", "--grid", "lr=1,2")
    assert done.code == 65
    assert "train.py: is a program, not a job file\n  to run it, write" in done.err
    assert done.err.endswith(": -- python3 train.py\n")


def test_a_verb_that_sweep_does_not_have_leads_to_those_it_has() -> None:
    said = sweep("best", "night")
    assert (said.code, "`holdfast sweep --help` lists its verbs" in said.err) == (64, True), said
    assert "write `--` before the command" in sweep("train.sh", "--lr", "1").err


def test_a_configuration_that_never_reaches_the_program_is_refused() -> None:
    write_configured("grid: {optimizer.lr: [1]}\n", words="other.yaml")
    done = sweep("s.yaml")
    assert done.code == 65
    assert "{config}" in done.err


def test_a_parameter_that_the_configuration_does_not_have_is_told() -> None:
    write_configured("grid: {model.widdt: [1]}\n")
    said = sweep("s.yaml")
    assert "did you mean model.width?" in said.err
    assert sweep("s.yaml", "--name", "again", "--strict").code == 64


# --------------------------------------------------------------------------------------------------- contradictions


@pytest.mark.gotcha("U32")
@pytest.mark.requirement("QUEUE-08")
def test_a_value_for_all_that_contradicts_a_jobs_configuration_is_told_with_both() -> None:
    write_configured("grid: {seed: [0, 1]}\n")
    said = sweep("s.yaml", "--set", "epochs=20")
    assert said.code == 0
    assert "seed=0 and 1 more: epochs is 20 (set)" in said.err
    assert "conf.yaml says 50" in said.err
    assert "epochs: 20" in read_config("seed=0")


@pytest.mark.gotcha("U32")
@pytest.mark.requirement("QUEUE-08")
def test_a_grid_of_one_value_is_said_for_all_and_told_beside_the_configuration() -> None:
    write("conf.yaml", "epochs: 50\nlr: 0.1\n")
    write("job.yaml", "command: [sh, train.sh]\nconfig: conf.yaml\n")
    said = sweep("job.yaml", "--dry-run", "--grid", "epochs=20", "--grid", "lr=1,2")
    assert "lr=1 and 1 more: epochs is 20 (grid), while" in said.err.replace("epochs=20_", "")
    assert "conf.yaml says 50" in said.err
    assert "lr is" not in said.err, "what varies on purpose is no contradiction"
    assert "epochs is" not in sweep("job.yaml", "--dry-run", "--grid", "epochs=50.0").err
    assert sweep("job.yaml", "--name", "more", "--grid", "lr=1,2").code == 0
    assert "lr is" not in say("sweep", "add", "more", "--grid", "lr=3").err, "one more value of what varies"


@pytest.mark.gotcha("U32")
@pytest.mark.requirement("QUEUE-08")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--epochs, 20", "epochs is 20 (the job's command)"),
        ("--epochs=20", "epochs is 20 (the job's command)"),
        ("epochs=20", "epochs is 20 (the job's command)"),
        ("--batch-size, 8", "batch_size is 8 (the job's command)"),
        ("model.width=1", "model.width is 1 (the job's command)"),
        ("--epochs, 5e1, --width, 1, --model, x, --seed, 1, --batch-size, '{lr}'", ""),
    ],
)
def test_what_the_command_says_beside_its_configuration_is_told(words: str, said: str) -> None:
    write("conf.yaml", "epochs: 50\nbatch_size: 64\nmodel: {width: 64}\nseed:\n")
    write("job.yaml", f"command: [sh, train.sh, {words}]\nconfig: conf.yaml\n")
    done = sweep("job.yaml", "--dry-run", "--grid", "lr=1,2")
    assert done.code == 0, done
    assert ("while" in done.err) == bool(said), done.err
    assert said in done.err


@pytest.mark.requirement("QUEUE-08")
def test_a_jobs_own_value_stands_over_the_one_for_all_and_both_are_told() -> None:
    write("s.yaml", "job: job.yaml\nset: {epochs: 20}\njobs: [{name: long, params: {epochs: 50}}, {name: usual}]\n")
    said = sweep("s.yaml")
    assert "long: epochs is 50 (the job), while set says 20" in said.err
    found = jobs("s")
    assert found["long"]["command"][2:] == ["--epochs=50"]
    assert found["usual"]["command"][2:] == ["--epochs=20"]


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("{command: [sh, train.sh, --epochs, 10]}", "the job's command says 10"),
        ("{command: [sh, train.sh, --epochs=10]}", "the job's command says 10"),
        ("{command: [sh, train.sh], env: {EPOCHS: '10'}}", "env.EPOCHS says 10"),
    ],
)
def test_a_parameter_against_the_jobs_own_value_is_told(job: str, said: str) -> None:
    write("s.yaml", f"job: {job}\ngrid: {{epochs: [20]}}\n")
    assert said in sweep("s.yaml", "--dry-run").err


def test_an_option_against_a_jobs_own_job_key_is_told_and_the_job_stands() -> None:
    write("s.yaml", "job: job.yaml\njobs: [{name: long, job: {timeout: 4h}}, {name: usual}]\n")
    said = sweep("s.yaml", "--timeout", "1h")
    assert "long: timeout is 4h" in said.err
    assert "--timeout says 1h" in said.err
    assert {name: job["timeouts"]["total_s"] for name, job in jobs("s").items()} == {"long": 14400.0, "usual": 3600.0}


def test_strict_refuses_what_is_said_twice_and_nothing_else() -> None:
    write("s.yaml", "job: job.yaml\nset: {epochs: 20}\njobs: [{name: long, params: {epochs: 50}}]\n")
    assert sweep("s.yaml", "--strict").code == 64
    with Queue() as queue:
        assert queue.jobs() == []
    write("s.yaml", "job: job.yaml\nset: {epochs: 20}\njobs: [{name: long, params: {epochs: 2e1}}]\n")
    assert sweep("s.yaml", "--strict").code == 0


# --------------------------------------------------------------------------------------------------------------- add


@pytest.mark.requirement("QUEUE-09")
def test_jobs_are_added_over_the_sweep_as_it_was_handed_in() -> None:
    write("s.yaml", f"{RATES}set: {{epochs: 5}}\noverrides: [{{when: {{lr: 1e-2}}, cost: 50m}}]\n")
    sweep("s.yaml")
    write("s.yaml", "this: is no longer a sweep\n")
    said = say("sweep", "add", "s", "--grid", "lr=1e-2,1e-3")
    assert said.code == 0, said
    assert "1 of them handed in before" in said.out
    assert jobs("s")["lr=1e-2"]["command"] == ["sh", "train.sh", "--lr=1e-2", "--epochs=5"]
    assert find("s/lr=1e-2").expected_s == 3000.0


def test_jobs_are_not_added_over_changed_files_unless_that_is_meant() -> None:
    sweep(write("s.yaml", RATES))
    write("job.yaml", f"{JOB}timeout: 1h\n")
    said = say("sweep", "add", "s", "--grid", "lr=1e-2")
    assert said.code == 64
    assert "job.yaml" in said.err
    assert say("sweep", "add", "s", "--grid", "lr=1e-2", "--accept-changes").code == 0
    assert jobs("s")["lr=1e-2"]["timeouts"]["total_s"] is None


def test_a_job_is_not_added_into_the_output_of_another() -> None:
    sweep("--name", "s", "--grid", "out=/data/a,/data/b", "--", "sh", "train.sh")
    said = say("sweep", "add", "s", "--grid", "out=/data/a/inside")
    assert said.code == 64
    assert "inside /data/a" in said.err


@pytest.mark.parametrize(("name", "said"), [("nights", "no sweep"), ("../x", "no sweep")])
def test_a_sweep_that_is_not_there_gets_no_jobs(name: str, said: str) -> None:
    done = say("sweep", "add", name, "--grid", "lr=1")
    assert done.code == 66
    assert said in done.err


# -------------------------------------------------------------------------------------------------------------- show


def make_results(group: str, numbers: dict[str, dict[str, float] | None], runs: Path) -> None:
    """Runs of a group's jobs: done with results, or (None) running with what was last logged."""
    for number, (name, results) in enumerate(numbers.items()):
        run_id = f"20261120-104501-job-{number:04x}"
        attempt = runs / run_id / "attempts" / "2"
        attempt.mkdir(parents=True)
        (runs / run_id / "artifacts").mkdir()
        (runs / run_id / "run.json").write_text(json.dumps({"job": {"artifacts": ["artifacts/r.json"]}}))
        (attempt / "heartbeat.json").write_text('{"step": 7, "time": 1.5, "loss": 0.25, "accuracy": 0.99}')
        if results is not None:
            for past, seconds in enumerate((20.5, 41.5), 1):
                ended = runs / run_id / "attempts" / str(past)
                ended.mkdir(exist_ok=True)
                (ended / "exit.json").write_text(json.dumps({"duration_s": seconds}))
            (runs / run_id / "artifacts" / "r.json").write_text(json.dumps({**results, "ok": True, "deep": {"x": 1}}))
        put(f"{group}/{name}", JobState.CLAIMED, run_id=run_id, attempts=2)
        put(f"{group}/{name}", JobState.RUNNING, started_at=10.0)
        if results is not None:
            put(f"{group}/{name}", JobState.PRODUCED, ended_at=75.0)
            put(f"{group}/{name}", JobState.DONE)


@pytest.fixture
def shown(isolated_environment: dict[str, str]) -> None:
    """A sweep with two results, one job at work and one in the queue."""
    sweep("job.yaml", "--name", "s", "--grid", "lr=1,2,3,4")
    make_results(
        "s",
        {"lr=1": {"accuracy": 0.8}, "lr=2": {"accuracy": 0.9}, "lr=3": None},
        Path(isolated_environment["HOLDFAST_RUNS"]),
    )


@pytest.mark.usefixtures("shown")
def test_numbers_stand_side_by_side_and_only_results_are_results() -> None:
    said = say("sweep", "show", "s", "--metrics", "accuracy,loss", "--sort", "accuracy")
    assert said.code == 0
    rows = [line.split() for line in said.out.splitlines()[1:5]]
    assert [row[0] for row in rows] == ["lr=2", "lr=1", "lr=3", "lr=4"]
    assert rows[0][2:4] == ["done", "2"]
    assert rows[0][-3:] == ["0.9", "*", "0.25"]
    assert rows[2][-2:] == ["~0.99", "~0.25"]
    assert "no result" in said.out
    assert said.out.splitlines()[-1] == "s: 2 of 4 done, 1 queued, 1 running"


@pytest.mark.usefixtures("shown")
def test_programs_get_every_number_and_whether_it_is_final() -> None:
    said = say("sweep", "show", "s", "--json", "--sort", "accuracy:min").json()
    assert said["best"] == "lr=1"
    assert said["best_by"] == {"accuracy": ["lr=1"]}, "as it was named; the losses are all the same"
    plain = say("sweep", "show", "s", "--json").json()
    assert (plain["best"], plain["best_by"]) == (None, {"accuracy": ["lr=2"]}), "as the table marks them"
    jobs = {job["job"]: job for job in said["jobs"]}
    assert jobs["lr=1"]["metrics"] == {"step": 7, "loss": 0.25, "accuracy": 0.8, "deep.x": 1}
    assert {name: job["final"] for name, job in jobs.items()} == {
        "lr=1": True,
        "lr=2": True,
        "lr=3": False,
        "lr=4": False,
    }
    # What the job ran in all its attempts; the queue had it for 65 s, with the time in line.
    assert jobs["lr=1"]["seconds"] == 62.0
    assert jobs["lr=3"]["seconds"] is None


@pytest.mark.usefixtures("shown")
def test_a_table_is_exported_whole_and_not_over_another() -> None:
    assert say("sweep", "export", "s", "t.csv").code == 0
    lines = Path("t.csv").read_text().splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("job,state,final,")
    assert say("sweep", "export", "s", "t.csv").code == 74
    assert say("sweep", "export", "s", "t.csv", "--overwrite").code == 0
    assert say("sweep", "export", "s", "t.json").code == 0
    assert len(json.loads(Path("t.json").read_text())["jobs"]) == 4
    assert say("sweep", "export", "s", "t.txt").code == 64


@pytest.mark.usefixtures("shown")
def test_a_number_that_no_job_has_gets_a_near_one() -> None:
    said = say("sweep", "show", "s", "--sort", "accurate")
    assert said.code == 66
    assert "did you mean accuracy? there are " in said.err
    assert "loss" in said.err
    assert "min nor max" in say("sweep", "show", "s", "--sort", "accuracy:best").err


def log(runs: Path, number: int, attempt: int, text: str) -> None:
    """What a job of `make_results` logged."""
    directory = runs / f"20261120-104501-job-{number:04x}" / "attempts" / str(attempt)
    directory.mkdir(exist_ok=True)
    (directory / "metrics.jsonl").write_text(text)


@pytest.mark.usefixtures("shown")
def test_what_the_script_logged_last_is_a_number_of_its_job(isolated_environment: dict[str, str]) -> None:
    """The heartbeat has the loss alone; a value that is not logged with each step counts, too."""
    runs = Path(isolated_environment["HOLDFAST_RUNS"])
    rows = ['{"step": 1, "time": 1.0, "f1": 0.1, "auc": 0.7}', '{"step": 2, "f1": 0.2, "loss": 9.0, "done": true}']
    log(runs, 0, 2, "\n".join([*rows, '{"step": 3, "f1"']))
    log(runs, 1, 1, '{"step": 9, "f1": 0.4}\n')
    log(runs, 2, 2, '{"step": 5, "f1": "nan"}\nno json\n[1]\n{"f2": 1e999, "f3": 1' + "0" * 30 + "}\n")
    said = say("sweep", "show", "s", "--sort", "f1:max")
    assert (said.code, [line.split()[0] for line in said.out.splitlines()[1:4]]) == (0, ["lr=2", "lr=1", "lr=3"])
    jobs = {job["job"]: job["metrics"] for job in say("sweep", "show", "s", "--json").json()["jobs"]}
    assert jobs["lr=1"] == {"step": 7, "loss": 0.25, "accuracy": 0.8, "f1": 0.2, "auc": 0.7, "deep.x": 1}
    assert jobs["lr=2"]["f1"] == 0.4
    assert jobs["lr=3"] == {"step": 7, "loss": 0.25, "accuracy": 0.99, "f1": "nan", "f2": "inf"}
    assert say("sweep", "show", "s", "--metrics", "f1").out.splitlines()[1].split()[-1] == "0.2"
    assert say("sweep", "export", "s", "f1.csv").code == 0
    assert ",f1" in Path("f1.csv").read_text().splitlines()[0]


@pytest.mark.usefixtures("shown")
def test_a_metrics_file_that_is_none_hurts_no_table(isolated_environment: dict[str, str]) -> None:
    runs = Path(isolated_environment["HOLDFAST_RUNS"])
    log(runs, 0, 2, "x" * (3 << 20))
    log(runs, 1, 2, "{" * 40_000 + "\n" + "[" * 20_000 + "\n\0\n")
    (runs / "20261120-104501-job-0002" / "attempts" / "2" / "metrics.jsonl").symlink_to("/dev/zero")
    said = say("sweep", "show", "s", "--sort", "accuracy")
    assert (said.code, said.err.count("cannot be read")) == (0, 1)
    assert said.out.splitlines()[1].split()[0] == "lr=2"


@pytest.mark.usefixtures("shown")
def test_the_pace_of_a_job_is_shown_when_it_is_named(isolated_environment: dict[str, str]) -> None:
    for path in Path(isolated_environment["HOLDFAST_RUNS"]).glob("*/attempts/2/heartbeat.json"):
        path.write_text('{"step": 7, "planned_steps": 9, "steps_per_s": 2.5, "pause_seconds": 0.1, "loss": 0.25}')
    said = say("sweep", "show", "s").out
    assert ("PLANNED_STEPS" in said, "STEPS_PER_S" in said, "PAUSE_SECONDS" in said) == (False, False, False)
    assert "also: planned_steps, steps_per_s, pause_seconds" in said
    assert "2.5" in say("sweep", "show", "s", "--metrics", "steps_per_s").out


@pytest.mark.parametrize("form", [(), ("--csv",), ("--json",)], ids=" ".join)
def test_a_number_that_no_job_has_is_refused_in_every_form(
    form: tuple[str, ...], isolated_environment: dict[str, str]
) -> None:
    sweep("job.yaml", "--name", "s", "--grid", "lr=1,2")
    early = say("sweep", "show", "s", "--sort", "nocolumn", *form)
    assert early.code == 0
    assert "no job has logged a number yet: nothing to sort by 'nocolumn'" in early.err
    make_results("s", {"lr=1": {"accuracy": 0.8}}, Path(isolated_environment["HOLDFAST_RUNS"]))
    said = say("sweep", "show", "s", "--sort", "nocolumn", *form)
    assert said.code == 66
    assert "no job has a number 'nocolumn'" in said.err + said.out
    assert "there are step, loss, accuracy" in said.err + said.out


@pytest.mark.usefixtures("shown")
def test_csv_is_sorted_as_the_table_is() -> None:
    lines = say("sweep", "show", "s", "--csv", "--sort", "accuracy").out.splitlines()
    assert [line.partition(",")[0] for line in lines[1:]] == ["lr=2", "lr=1", "lr=3", "lr=4"]


def test_results_that_cannot_be_read_are_named_and_no_number(isolated_environment: dict[str, str]) -> None:
    sweep("job.yaml", "--name", "s", "--grid", "lr=1")
    runs = Path(isolated_environment["HOLDFAST_RUNS"])
    make_results("s", {"lr=1": {"accuracy": 0.8}}, runs)
    (path,) = runs.glob("*/artifacts/r.json")
    for text in ("{", "[1]", '{"\\u001b[31m": 1}', "x" * (2 << 20)):
        path.write_text(text)
        said = say("sweep", "show", "s")
        assert said.code == 0
        assert ("cannot be read" in said.err) is (not text.startswith('{"'))
        assert "\x1b" not in said.out + said.err


def test_a_group_that_is_not_there_has_no_table() -> None:
    assert say("sweep", "show", "nights").code == 66


# ------------------------------------------------------------------------------------------------------------- retry


def test_only_failed_jobs_are_tried_again() -> None:
    sweep("job.yaml", "--name", "s", "--grid", "lr=1,2")
    put("s/lr=1", JobState.CLAIMED, run_id=RUN)
    put("s/lr=1", JobState.RUNNING)
    put("s/lr=1", JobState.FAILED, exit_code=1)
    said = say("sweep", "retry", "s")
    assert said.code == 0
    assert "queued again: s/lr=1" in said.out
    assert find("s/lr=1").state is JobState.QUEUED


def test_boxes_that_share_claims_resolve_to_the_same_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_configured("grid: {optimizer.lr: [1]}\n")
    hashes = []
    for box in ("one", "two"):
        monkeypatch.setenv("HOLDFAST_QUEUE", str(tmp_path / box))
        assert sweep("s.yaml", "--claims", str(tmp_path / "claims")).code == 0
        assert "lr: 1" in read_config("optimizer.lr=1")
        hashes.append(find("s/optimizer.lr=1").sha256)
    assert hashes[0] == hashes[1]


def test_adding_jobs_says_how_many_the_sweep_has_then() -> None:
    assert "2 jobs in sweep rates\n" in sweep("job.yaml", "--name", "rates", "--grid", "lr=1e-3,3e-4").out
    assert "1 job in sweep rates, which has 3 now" in say("sweep", "add", "rates", "--grid", "lr=1e-2").out


def test_equally_good_jobs_are_all_marked_and_numbers_stand_in_line() -> None:
    values = {1: 0.5, 2: 0.9, 3: 0.9}
    rows = [
        ResultRow(QueuedJob(n, str(n), "s", f"c{n}", JobState.DONE), {"acc": values[n]}, final=True) for n in values
    ]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print_rows("s", rows, sort=("acc", None))
    lines = [line for line in out.getvalue().splitlines() if line.startswith("c")]
    assert [line.endswith("*") for line in lines] == [True, True, False]
    assert len({line.index("0.") for line in lines}) == 1


def test_nothing_is_written_into_claims_that_others_may_write_to(tmp_path: Path) -> None:
    shared, elsewhere = tmp_path / "claims", tmp_path / "elsewhere"
    for place in (shared, elsewhere):
        place.mkdir()
    shared.chmod(0o777)
    (shared / "configs").symlink_to(elsewhere)
    write("conf.yaml", "optimizer: {lr: 1}\n")
    write("s.yaml", "job: {command: [sh, train.sh, conf.yaml]}\nconfig: conf.yaml\ngrid: {optimizer.lr: [1, 2]}\n")
    said = sweep("s.yaml", "--claims", str(shared))
    assert said.code == 77, said
    assert "use one of your own" in said.err
    assert list(elsewhere.iterdir()) == []
