"""What hostile input, a hostile neighbour and a hostile job must not bring about: a traceback, a lost run, a lie."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.host.files import fallback
from holdfast.host.process.processes import user_name
from holdfast.model import wire
from tests.cli.conftest import ENTRY
from tests.cli.live import live_run
from tests.rundirs import ended, make_run
from tests.waiting import LIMIT_S, LONG_S, wait_until

if TYPE_CHECKING:
    from tests.cli.conftest import Command
    from tests.fakes.nvml.driver import FakeNvml

pytestmark = pytest.mark.cli

OLD = "20261120-100000-old-0a1b"
STRANGER = 61_666


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "seen"),
    [
        ("dots.toml", ".".join(["a"] * 100_000) + " = 1\n", "dots.toml:1: more than 32 levels"),
        ("header.toml", "[" + ".".join(["a"] * 2000) + "]\n", "header.toml:1: more than 32 levels"),
        ("number.toml", "timeout = " + "9" * 5000 + "\n", "too large"),
    ],
)
def test_a_toml_file_that_no_parser_likes_is_refused_with_its_place(
    holdfast: Command, tmp_path: Path, name: str, text: str, seen: str
) -> None:
    (tmp_path / name).write_text(text)
    done = holdfast("run", name)
    assert done.code == 65
    assert seen in done.err


@pytest.mark.slow
def test_a_pipe_that_nobody_writes_into_is_no_job_file(holdfast: Command, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "job.yaml")
    done = holdfast("run", "job.yaml")
    assert done.code == 65
    assert "nobody wrote" in done.err


@pytest.mark.slow
def test_a_job_file_from_a_pipe_runs_in_the_current_directory(tmp_path: Path) -> None:
    line = f"{' '.join(ENTRY)} run --disk-min-free 0 <(echo 'command: [pwd]')"
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}\n"), done.stderr


@pytest.mark.parametrize(
    "closed", ["<&- >&- 2>&-", *(pytest.param(one, marks=pytest.mark.slow) for one in ("<&-", ">&-", "2>&-"))]
)
@pytest.mark.parametrize("options", ["", "-d --prove 0"])
def test_closed_standard_streams_change_nothing_for_the_job(
    holdfast: Command, tmp_path: Path, closed: str, options: str
) -> None:
    line = f"{' '.join(ENTRY)} run {options} --name bare -- sh -c 'echo said; exit 0' {closed}"
    done = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done
    assert "Traceback" not in done.stderr
    assert "bug" not in done.stderr
    wait_until(lambda: "succeeded" in holdfast("ls").out, what="the run has succeeded")
    assert holdfast("logs", "bare").out == "said\n"


# What `main` loads by itself, and what is loaded before it is called.
@pytest.mark.parametrize("module", ["holdfast.cli.errors", "holdfast.cli", "holdfast.cli.main", "holdfast.host"])
def test_an_interrupt_while_modules_are_loaded_is_no_traceback(tmp_path: Path, module: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
    )
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.pathsep.join(sys.path)}"}
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    (source, function) = re.findall(r'^holdfast = "([\w.]+):(\w+)"$', project, re.MULTILINE)[0]
    # As the script that an installation writes.
    installed = [sys.executable, "-c", f"import sys; from {source} import {function}; sys.exit({function}())"]
    for entry in (ENTRY, installed):
        done = subprocess.run([*entry, "ls"], env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert (done.returncode, done.stderr) == (130, ""), entry


@pytest.mark.slow
def test_a_full_standard_output_is_said_and_costs_the_run_nothing(holdfast: Command, tmp_path: Path) -> None:
    with open("/dev/full", "w", encoding="ascii") as full:
        command = [*ENTRY, "run", "--name", "loud", "--", "echo", "said"]
        done = subprocess.run(
            command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False
        )
    assert done.returncode == 74
    assert "No space left on device" in done.stderr
    assert "is not affected" in done.stderr
    wait_until(lambda: "succeeded" in holdfast("ls").out, what="the run has succeeded")


def test_an_error_for_programs_that_standard_output_refuses_is_told_to_a_person() -> None:
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run(
            [*ENTRY, "show", "--json", "nosuch"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode == 66
    assert "nosuch" in done.stderr


@pytest.mark.slow
def test_runs_in_a_directory_whose_name_is_no_text_are_run(holdfast: Command, tmp_path: Path) -> None:
    root = os.fsencode(tmp_path) + b"/\xff\xfe"
    done = holdfast("run", "--runs", os.fsdecode(root), "--", "echo", "hi")
    assert done.code == 0, done
    assert done.out == "hi\n"


@pytest.mark.slow
def test_a_umask_that_closes_everything_leaves_run_directories_open_to_their_owner(
    isolated_environment: dict[str, str], tmp_path: Path
) -> None:
    line = f"umask 777; {' '.join(ENTRY)} run --runs new/deep -- true"
    done = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done
    made = [tmp_path / "new", tmp_path / "new/deep", *(tmp_path / "new/deep").iterdir()]
    made += list(made[-1].glob("attempts/*"))
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700}


@pytest.mark.slow
def test_a_directory_is_not_called_missing(holdfast: Command, tmp_path: Path) -> None:
    done = holdfast("run", "--", str(tmp_path))
    assert done.code == 78
    assert "is a directory" in done.err


@pytest.mark.slow
def test_a_rule_with_a_number_of_5000_digits_is_a_malformed_rules_file(
    holdfast: Command, isolated_environment: dict[str, str]
) -> None:
    with open(isolated_environment["HOLDFAST_RULES"], "w", encoding="ascii") as file:
        file.write(f"nice = {'9' * 5000}\n")
    assert "too large a number" in holdfast("gpus").err
    done = holdfast("run", "--", "true")
    assert done.code == 78
    assert "rules.toml:1" in done.err


HUGE = "1" + "0" * 400
BEATING = (
    "sh",
    "-c",
    f"""printf '{{"step": {HUGE}, "time": {HUGE}, "save_seconds": {HUGE}, "loss": 1}}' > "$HOLDFAST_HEARTBEAT"
    echo ready; while :; do sleep 0.1; done""",
)


@pytest.mark.slow
@pytest.mark.requirement("PROC-07")
def test_a_heartbeat_with_numbers_that_no_float_holds_does_not_keep_a_run_from_being_stopped(
    holdfast: Command,
) -> None:
    with live_run(holdfast, "--health-every", "100ms", job=BEATING) as run:
        assert holdfast("show", run.run_id).code == 0
        assert holdfast("ls").code == 0
        wait_until(lambda: os.path.exists(f"{run.look().attempt_dir}/{wire.HEALTH}"), what="a health sample")
        done = holdfast("stop", "--wait", "15s", run.run_id)
        assert done.code == 0, done
        assert "internal_error" not in holdfast("logs", "--events", run.run_id).out


@pytest.mark.slow
def test_a_heartbeat_with_such_numbers_does_not_lift_the_time_limit(holdfast: Command) -> None:
    assert holdfast("run", "--timeout", "2s", "--", *BEATING).code == 124


@pytest.mark.slow
def test_a_job_that_removes_its_own_run_directory_still_gives_its_exit_code(holdfast: Command) -> None:
    script = 'rm -rf "$HOLDFAST_RUN_DIR" 2>/dev/null; echo gone; sleep 1; exit 3'
    done = holdfast("run", "--", "sh", "-c", script, timeout_s=LONG_S)
    run_id = done.err.split("holdfast: run ")[1].split()[0]
    # What the removed directory refused lies aside, which is no leak of this test's.
    fallback.clear(run_id, 1)
    assert done.code == 3, done


def test_an_output_file_that_is_none_any_more_is_said(holdfast: Command, isolated_environment: dict[str, str]) -> None:
    directory = make_run(isolated_environment["HOLDFAST_RUNS"], OLD, ended())
    os.mkfifo(f"{directory}/attempts/1/output.log")
    for verb in ("logs", "attach"):
        done = holdfast(verb, OLD)
        assert done.code == 74, done
        assert "not a regular file" in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "content", ['{"outcome": "succeeded", "duration_s": 1e999}', '{"a": ' + "[" * 900 + "]" * 900 + "}"]
)
@pytest.mark.parametrize("name", [wire.EXIT, wire.HEARTBEAT, wire.MANIFEST])
def test_records_with_absurd_values_are_shown_or_refused(
    holdfast: Command, isolated_environment: dict[str, str], content: str, name: str
) -> None:
    directory = make_run(isolated_environment["HOLDFAST_RUNS"], OLD, ended())
    with open(f"{directory}/attempts/1/{name}", "w", encoding="ascii") as file:
        file.write(content)
    for verb in (("show",), ("show", "--json"), ("ls",), ("attach",)):
        done = holdfast(*verb, *([] if verb == ("ls",) else [OLD]))
        assert done.code in (0, 69, 74), done


@pytest.mark.slow
def test_a_stopped_supervisor_is_named_as_the_reason_why_nothing_happens(holdfast: Command) -> None:
    with live_run(holdfast) as run:
        state = run.look().state
        assert state is not None
        assert state.supervisor is not None
        os.kill(state.supervisor.pid, signal.SIGSTOP)
        try:
            done = holdfast("stop", "--wait", "1s", run.run_id)
            assert done.code == 124
            assert f"kill -CONT {state.supervisor.pid}" in done.out
        finally:
            os.kill(state.supervisor.pid, signal.SIGCONT)


@pytest.mark.requirement("ETIQ-05")
def test_ETIQ_05_a_run_that_cannot_be_removed_is_left_whole_and_called_so(
    holdfast: Command, isolated_environment: dict[str, str]
) -> None:
    root = isolated_environment["HOLDFAST_RUNS"]
    make_run(root, OLD, ended())
    os.makedirs(f"{root}/.removing-{OLD}/in-the-way")
    os.chmod(f"{root}/.removing-{OLD}", 0o500)
    blocked = f"{root}/.removing-{OLD}"
    # Somebody else's directory stands where the run would be put aside: renaming onto it is refused.
    if os.geteuid() == 0:
        os.chown(blocked, 65534, -1)
    done = holdfast("rm", "--yes", OLD)
    if os.geteuid() == 0:
        os.chown(blocked, 0, -1)
    os.chmod(blocked, 0o700)
    assert done.code == 74, done
    assert "it is whole" in done.err
    assert os.path.exists(f"{root}/{OLD}/run.json")


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another account")
def test_what_is_closed_to_us_is_not_called_empty(
    holdfast: Command, public_path: Path, isolated_environment: dict[str, str]
) -> None:
    directory = make_run(public_path, OLD, ended())
    # Without the capabilities that let root look everywhere, and with the directory belonging to somebody else.
    os.chown(directory, 65534, 65534)
    os.chmod(directory, 0o700)
    drop = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"]

    def refused(*words: str) -> str:
        done = subprocess.run(
            [*drop, *ENTRY, *words, directory], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 77, done
        return done.stderr

    for verb in ("logs", "attach", "show"):
        assert "belongs to nobody" in refused(verb)
    os.chown(directory, 0, 0)
    os.chmod(directory, 0)
    assert f"chmod u+rwx {directory}" in refused("show")
    assert f"chmod u+rwx {directory}" in refused("stop"), "not that nothing was ever started"
    assert f"chmod u+rwx {directory}" in refused("rm", "--runs", str(public_path))


@pytest.mark.slow
def test_a_run_whose_directory_has_gone_but_whose_lease_holds_tells_how_to_stop_it(
    holdfast: Command, isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "1")
    root = isolated_environment["HOLDFAST_RUNS"]
    with live_run(holdfast, "--gpus", "1", "--idle-window", "0s") as run:
        os.rename(root, f"{root}.away")
        done = holdfast("stop", run.run_id)
        os.rename(f"{root}.away", root)
        state = run.look().state
        assert state is not None
        assert state.supervisor is not None
        assert done.code == 66
        assert f"kill -TERM {state.supervisor.pid}" in done.err


def test_a_lease_area_full_of_rubbish_is_told_of_in_few_lines(
    holdfast: Command, isolated_environment: dict[str, str]
) -> None:
    area = isolated_environment["HOLDFAST_LEASE_DIR"]
    for number in range(100):
        with open(f"{area}/lease-{number}.json", "w", encoding="ascii") as file:
            file.write("[")
    done = holdfast("gpus", env={"HOLDFAST_SIMULATED_GPUS": "1"})
    assert done.code == 0
    assert len(done.err.splitlines()) < 30
    assert "97 more files of" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("uuid", ["GPU-../../../tmp/x", "", "GPU a b"])
def test_a_driver_that_lies_about_a_uuid_gives_a_card_that_nobody_gets(
    holdfast: Command, fake_nvml: FakeNvml, uuid: str
) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.set(0, uuid=uuid)
    done = holdfast("gpus")
    assert done.code == 0
    assert "implausible" in done.out
    refused = holdfast("run", "--gpus", "1", "--idle-window", "0s", "--", "true")
    assert refused.code in (75, 78), refused
    assert "implausible" in refused.err


@pytest.mark.slow
def test_two_cards_that_say_the_same_uuid_are_both_refused(holdfast: Command, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(3)
    fake_nvml.set(1, uuid=fake_nvml.cards[0].uuid)
    lines = holdfast("gpus").out.splitlines()
    assert [line.split()[-1] for line in lines[1:4]] == ["no", "no", "yes"]
    assert "of several cards" in "\n".join(lines)


@pytest.mark.slow
def test_a_card_whose_lock_file_is_obstructed_is_left_alone_and_whoever_did_it_is_named(
    holdfast: Command, isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "2")
    uuids = [card["uuid"] for card in holdfast("gpus", "--json").json()["cards"]]
    path = f"{isolated_environment['HOLDFAST_LEASE_DIR']}/gpu-{uuids[0]}.lock"
    os.symlink("nowhere", path)
    if os.geteuid() == 0:
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    owner = str(STRANGER) if os.geteuid() == 0 else user_name(os.geteuid())
    words = f"{owner} ({path} is a symbolic link, no lock file)"
    quick = ("--idle-window", "0s", "--", "true")
    assert holdfast("run", "--gpus", "1", *quick).code == 0
    refused = holdfast("run", "--gpus", "2", *quick)
    assert refused.code == 75
    assert words in refused.err
    waited = holdfast("run", "--gpus", "2", "--wait", "1s", *quick)
    assert waited.code == 75
    assert f"card 0, held by {words}" in waited.err
    seen = holdfast("gpus")
    assert words in seen.out
    first, second = (line.split()[-1] for line in seen.out.splitlines()[2:4])
    assert (first, second) == ("no", "yes")
