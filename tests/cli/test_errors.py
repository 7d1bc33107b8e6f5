"""From exceptions to words and exit codes: nobody ever sees a traceback."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from holdfast.cli import errors
from holdfast.cli.group import holdfast as group
from holdfast.model.errors import HoldfastError, ResourceBusy
from tests.cli.conftest import ENTRY
from tests.cli.queues import say
from tests.each import each
from tests.rundirs import ended, make_run
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


def raising(error: BaseException) -> Callable[[], int]:
    def call() -> int:
        raise error

    return call


def every_error(cls: type[HoldfastError] = HoldfastError) -> list[type[HoldfastError]]:
    return [cls] + [found for sub in cls.__subclasses__() for found in every_error(sub)]


@pytest.mark.parametrize("cls", every_error(), ids=lambda cls: cls.__name__)
def test_each_error_is_said_with_its_hint_and_its_exit_code(
    cls: type[HoldfastError], capsys: pytest.CaptureFixture[str]
) -> None:
    assert errors.guard(raising(cls("card 0 is gone", hint="look at it")), []) == cls.exit_code
    assert capsys.readouterr() == ("", "holdfast: card 0 is gone\n  look at it\n")


def test_an_error_as_json_carries_its_details(capsys: pytest.CaptureFixture[str]) -> None:
    error = ResourceBusy("card 0 is held", hint="wait", details={"holder": "anna"})
    assert errors.guard(raising(error), ["run", "--json"]) == 75
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == {
        "schema": 1,
        "error": {
            "code": "busy",
            "message": "card 0 is held",
            "hint": "wait",
            "exit_code": 75,
            "blame": "environment",
            "transient": True,
            "holder": "anna",
        },
    }


def test_terminal_escapes_in_a_message_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    errors.guard(raising(HoldfastError("run \x1b[2J\x07 of \x9banna")), [])
    assert capsys.readouterr().err == "holdfast: run \\x1b[2J\\x07 of \\x9banna\n"


def test_an_interrupt_is_130_and_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.guard(raising(KeyboardInterrupt()), []) == 130
    assert capsys.readouterr() == ("", "")


def test_the_systems_refusal_names_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.guard(raising(PermissionError(errno.EACCES, "Permission denied", "/data/x")), []) == 74
    assert "holdfast: /data/x: Permission denied" in capsys.readouterr().err


def test_a_full_disk_is_not_called_a_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.guard(raising(OSError(errno.ENOSPC, "No space left on device")), []) == 74
    assert "No space left" in capsys.readouterr().err


def test_a_bug_writes_its_traceback_to_a_private_file_only(
    isolated_environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6" * 3
    argv = ["run", "--env", f"TOKEN={secret}"]
    assert errors.guard(raising(RuntimeError(f"odd {secret}")), argv) == 70
    err = capsys.readouterr().err
    assert err.startswith("holdfast: this is a bug in holdfast: RuntimeError")
    assert "Traceback" not in err
    found = re.search(r"the file (\S+crash-\S+\.log);", err)
    assert found is not None
    path = Path(found[1])
    assert path.parent == Path(isolated_environment["XDG_STATE_HOME"]) / "holdfast"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert "Traceback (most recent call last)" in text
    assert "in raising" not in text
    assert "in call" in text
    assert secret not in text


def test_a_bug_whose_report_cannot_be_written_says_where_it_happened(
    isolated_environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    (Path(isolated_environment["XDG_STATE_HOME"]) / "holdfast").write_text("in the way")
    assert errors.guard(raising(ZeroDivisionError("division by zero")), []) == 70
    err = capsys.readouterr().err
    assert re.search(r"test_errors\.py:\d+", err)
    assert "Traceback" not in err


def test_a_planted_state_directory_link_is_not_needed_to_fail(
    isolated_environment: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A relative XDG_STATE_HOME is ignored, as its specification says."""
    os.environ["XDG_STATE_HOME"] = "relative"
    try:
        assert errors.state_home() == os.path.join(isolated_environment["HOME"], ".local/state")
    finally:
        os.environ["XDG_STATE_HOME"] = isolated_environment["XDG_STATE_HOME"]


def test_a_reader_that_leaves_early_is_met_with_silence(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*ENTRY, "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, pipesize=4096
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.read(1)
        child.stdout.close()
        said = child.stderr.read()
        assert (child.wait(LIMIT_S), said) == (141, b"")


@pytest.mark.parametrize("verb", ["--version", "schema", "--help"])
def test_a_full_standard_output_is_an_error(verb: str, tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*ENTRY, verb], stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, check=False)
    assert done.returncode == 74
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


def test_a_full_standard_output_does_not_hide_what_was_done(holdfast: Command, tmp_path: Path) -> None:
    def say_into_full(*words: str, unbuffered: str = "") -> str:
        env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [*ENTRY, *words], stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=env, check=False
            )
        assert done.returncode == 74
        return done.stderr

    said = say_into_full("run", "-d", "--name", "unheard", "--", "true")
    (run,) = holdfast("ls", "--all", "--json").json()["runs"]
    assert f"; run {run['run_id']} was started; holdfast show {run['run_id']} says" in said
    assert holdfast("wait", run["run_id"]).code == 0
    assert "; nothing was removed" in say_into_full("rm", "--yes", run["run_id"], unbuffered="1")
    assert len(holdfast("ls", "--all", "--json").json()["runs"]) == 1
    assert "; removed 1 run" in say_into_full("rm", "--yes", run["run_id"])


def test_words_that_a_full_disk_takes_at_the_end_alone_hide_no_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w", encoding="utf-8", buffering=100) as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert errors.guard(lambda: 0 * full.write("done"), ["stop", "x"]) == 74
    assert "; the command itself ended with code 0\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "closed", [">&- 2>&-", *(pytest.param(one, marks=pytest.mark.slow) for one in ("<&-", ">&-", "2>&-"))]
)
def test_closed_standard_streams_do_no_harm(closed: str, tmp_path: Path) -> None:
    script = f'exec "$0" -m holdfast run absent.yaml {closed}'
    done = subprocess.run(
        ["/bin/sh", "-c", script, sys.executable], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 65
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_names_that_are_not_text_do_not_end_the_program(holdfast: Command, tmp_path: Path) -> None:
    ended = holdfast("run", os.fsdecode(b"\xe9t\xe9.yaml"), "--json", env={"LC_ALL": "C.UTF-8"})
    assert ended.code == 65
    assert ended.json()["error"]["message"] == "\udce9t\udce9.yaml: no such job file"


UNKNOWN_NAMES = {
    "run": ("show", "nosuch"),
    "run to stop": ("stop", "nosuch"),
    "attempt": ("logs", "--attempt", "7", "digits"),
    "group": ("queue", "ls", "nosuch"),
    "job": ("queue", "show", "nosuch"),
    "job to cancel": ("queue", "cancel", "nosuch"),
    "job to wait for": ("wait", "nosuch"),
    "sweep": ("sweep", "show", "nosuch"),
    "sweep to add to": ("sweep", "add", "nosuch", "--grid", "x=1"),
    "place": ("place", "show", "nosuch"),
    "place to run at": ("run", "--on", "nosuch", "--", "true"),
    "profile": ("profile", "show", "nosuch"),
    "card": ("gpus", "health", "99"),
    "reservation": ("gpus", "unreserve", "nosuch"),
    "checkpoints": ("checkpoints", "nosuch"),
    "fault": ("fault", "run", "nosuch"),
    "topic": ("explain", "nosuch"),
    "group to pause": ("queue", "pause", "nosuch"),
    "fact of a profile": ("profile", "verify", "runpod", "nosuch", "--yes"),
    "verb of a profile": ("profile", "survives", "runpod", "/workspace", "nosuch"),
    "key of the defaults": ("config", "get", "nosuch"),
    "key to state": ("config", "set", "nosuch", "1"),
    "profile of a place to add": ("place", "add", "new", "me@a", "--no-probe", "--profile", "nosuch"),
    "card to reserve": ("gpus", "reserve", "--gpus", "99,98", "--for", "1h"),
}


@each("what, words", UNKNOWN_NAMES.items())
def test_what_answers_to_no_name_has_one_exit_code(
    what: str, words: tuple[str, ...], isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "1x24GiB")
    run_dir = f"{isolated_environment['HOLDFAST_RUNS']}/20261120-100000-digits-0a1b"
    if not os.path.exists(run_dir):
        make_run(isolated_environment["HOLDFAST_RUNS"], state=ended())
    done = say(*words)
    assert done.code == 66, (what, done)
    assert any(name in done.err for name in ("nosuch", "99", "7")), (what, done)


def every_command(command: click.Command, context: click.Context) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from every_command(inner, context)


def test_whoever_opens_a_file_says_why_it_cannot() -> None:
    """click would say of a closed file that it is not readable, and to read the help."""
    wrong = [
        f"{command.name} {parameter.name}"
        for command in every_command(group, click.Context(group))
        for parameter in command.params
        if isinstance(parameter.type, click.Path) and parameter.type.readable and not parameter.type.exists
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("teardown", "gpu1", "--approve"), "`holdfast teardown --help`"),
        (("queue", "edit", "x", "--priority"), "`holdfast queue edit --help`"),
        (("ls", "--limit"), "`holdfast ls --help`"),
    ],
)
def test_an_option_without_its_value_names_the_verb(holdfast: Command, words: tuple[str, ...], said: str) -> None:
    done = holdfast(*words)
    assert done.code == 64
    assert "requires an argument" in done.err
    assert said in done.err


def test_an_option_that_is_near_to_nothing_is_likened_to_nothing(holdfast: Command) -> None:
    assert "Did you mean" not in holdfast("queue", "edit", "x", "--command", "y").err
    assert "Did you mean '--priority'?" in holdfast("queue", "edit", "x", "--prioritty", "1").err


def test_what_holdfast_limit_calls_an_option_is_likened_to_that_of_a_job(holdfast: Command) -> None:
    for words, meant in ((("run", "--memory", "1GB"), "--limit-memory"), (("submit", "--cpus", "2"), "--limit-cpus")):
        assert f"Did you mean '{meant}'?" in holdfast(*words, "--", "true").err


def test_a_value_in_two_words_is_told_to_be_quoted(holdfast: Command) -> None:
    done = holdfast("gpus", "reserve", "--from", "2026-12-01", "09:00", "--for", "1h", "--cards", "1")
    assert (done.code, "is one word in quotes" in done.err) == (64, True), done.err
    done = holdfast("submit", "--not-before", "2026-12-01", "08:00", "--", "true")
    assert (done.code, "put quotes around both" in done.err) == (65, True), done.err


def test_what_is_said_stands_in_its_order_where_one_file_takes_both() -> None:
    program = "from holdfast.cli.render import note; print('rows'); note('beside them'); print('more')"
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    assert done.stdout.splitlines() == ["rows", "holdfast: beside them", "more"]
