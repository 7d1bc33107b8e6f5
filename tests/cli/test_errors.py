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

import pytest

from holdfast.cli import errors
from holdfast.model.errors import HoldfastError, ResourceBusy
from tests.cli.conftest import ENTRY
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable

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
    state = Path(isolated_environment["XDG_STATE_HOME"])
    state.mkdir()
    (state / "holdfast").write_text("in the way")
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
