"""The failure note and the handbook: what a person reads, with the real paths in it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from holdfast.agent.control.create import create_run
from holdfast.agent.supervise.end.failure_note import write_failure
from holdfast.agent.view.page.handbook_text import render_handbook
from holdfast.diagnosis.ended.judgement import read_judgement
from holdfast.diagnosis.evidence import Answer
from holdfast.diagnosis.logs.scan import read_tail
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.finding import Finding, Level
from holdfast.model.identity import WaitStatus
from holdfast.model.job import JobSpec
from holdfast.model.run import Ended, Outcome
from holdfast.model.verdict import FailureClass

pytestmark = pytest.mark.process


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    spec = JobSpec("t", ("true",), str(tmp_path))
    return create_run(spec, str(tmp_path / "my runs"), argv=[], cwd="/", environ=os.environ)[0]


def fail(run_dir: str, code: int | None = 1, signal: int | None = None, findings: tuple[Finding, ...] = ()) -> str:
    status = WaitStatus(code, signal)
    ended = Ended(
        "2026-11-20T10:45:01.123Z", Outcome.FAILED, status.exit_code, f"ended with {status.describe()}", status
    )
    write_failure(run_dir, 1, ended, findings)
    return Path(run_dir, "attempts/1/failure.md").read_text()


@pytest.mark.requirement("POST-03")
def test_POST_03_the_note_holds_the_last_200_lines(run_dir: str) -> None:
    Path(run_dir, "attempts/1/output.log").write_text("".join(f"line {n}\n" for n in range(1, 501)))
    note = fail(run_dir)
    kept = [line for line in note.splitlines() if line.startswith("line ")]
    assert kept == [f"line {n}" for n in range(301, 501)]
    assert "class: `unknown` (possible)" in note
    assert "## What to do" in note
    assert "its last line: line 500" in note


@pytest.mark.requirement("POST-03")
def test_POST_03_what_to_do_and_the_exception_stand_before_the_evidence(run_dir: str) -> None:
    text = "Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\nKeyError: 'lr'\n"
    Path(run_dir, "attempts/1/output.log").write_text(text)
    note = fail(run_dir)
    assert "- cause: KeyError: 'lr'\n" in note
    assert "KeyError: 'lr' [output.log, byte " in note
    titles = [line[3:] for line in note.splitlines() if line.startswith("## ")]
    assert titles[:3] == ["What to do", "Its exception, from its output", "Evidence"]


@pytest.mark.requirement("POST-03")
def test_POST_03_signal_checks_and_counters_are_in_the_note(run_dir: str) -> None:
    record = {"usage": {"oom_kills": 1, "memory_peak_bytes": 2**30, "memory_limit_bytes": 2**30}}
    files.commit(f"{run_dir}/attempts/1/exit.json", wire.to_bytes(record))
    found = (Finding("data", Level.WARN, "/d", "changed", "restore it"), Finding("x", Level.PASS, "s", "fine"))
    note = fail(run_dir, None, 9, found)
    assert "class: `out_of_memory` (certain)" in note
    assert "do not shrink the batch" in note
    assert "`holdfast explain U9`" in note
    assert "- ended by: SIGKILL (9)\n" in note  # what KILL may mean otherwise is no news here
    assert "- warn: data, /d: changed (restore it)" in note
    assert "fine" not in note
    assert "wrote nothing" in note


@pytest.mark.requirement("POST-03", "DIAG-02")
def test_POST_03_evidence_against_and_what_could_not_be_read_stand_apart(run_dir: str) -> None:
    note = fail(run_dir, None, 9)
    assert "class: `killed` (possible)" in note
    unread = note.partition("## Could not be read")[2].partition("## What to do")[0]
    assert "OOM counter of its control group" in unread
    assert "manifest.json is not there" in unread
    assert "## Against it, and what it was not" in note
    assert "not stopped: holdfast was not asked to end it" in note


@pytest.mark.requirement("POST-03")
def test_POST_03_the_verdict_is_there_for_programs_and_is_kept(run_dir: str) -> None:
    Path(run_dir, "attempts/1/output.log").write_text("Traceback (most recent call last):\nKeyError: 'lr'\n")
    fail(run_dir)
    stored = read_judgement(run_dir, 1)
    assert stored is not None
    assert stored.verdict is not None
    assert (stored.verdict.kind, stored.tail) == (FailureClass.BUG, "")
    assert {item.answer for item in stored.ladder} >= {Answer.YES, Answer.NO, Answer.NOT_APPLICABLE}
    assert os.stat(f"{run_dir}/attempts/1/verdict.json").st_mode & 0o777 == 0o600


@pytest.mark.requirement("OBS-04")
def test_OBS_04_the_note_holds_no_secret_that_the_job_printed(run_dir: str) -> None:
    Path(run_dir, "attempts/1/output.log").write_text("HF_TOKEN=verysecret\nlogin with hf_" + "aB3d" * 9 + "\n")
    note = fail(run_dir)
    assert "verysecret" not in note
    assert "aB3daB3d" not in note


def test_a_fence_in_the_output_does_not_end_the_block(run_dir: str) -> None:
    Path(run_dir, "attempts/1/output.log").write_text("```\nlast\n")
    assert fail(run_dir).count("````") == 2


def test_the_tail_of_progress_bars_long_lines_and_bytes(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"10%\r20%\r30%\r\n" + b"x" * 5000 + b"\n\xff\xfe end\n")
    bar, long, odd = read_tail(str(log)).split("\n")
    assert (bar, len(long), odd.endswith(" end")) == ("30%", 2004, True)
    assert read_tail(str(tmp_path / "none")) == ""


def test_the_handbooks_commands_name_this_run(run_dir: str) -> None:
    text = render_handbook(run_dir, 3, JobSpec("t", ("train", "--lr", "a b"), "/w"))
    lines = [line.partition("#")[0] for line in text.splitlines() if line.startswith("    ")]
    for verb in ("show", "logs", "attach", "stop", "restart", "adopt"):
        words = next(shlex.split(line) for line in lines if f"holdfast {verb}" in line)
        assert words[-1] == run_dir
    tail = next(shlex.split(line) for line in lines if "tail -f" in line)
    assert tail[-1] == f"{run_dir}/attempts/3/output.log"
    assert "train --lr 'a b'" in text


def test_a_new_run_has_its_handbook(run_dir: str) -> None:
    assert "holdfast stop" in Path(run_dir, "handbook.md").read_text()
