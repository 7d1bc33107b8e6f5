"""Tools that attach: bounded, never on a task that cannot answer, and the target is left as it was."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.diagnosis.live.detect.waits import Wait
from holdfast.diagnosis.live.gather.look import take_snapshot
from holdfast.diagnosis.live.gather.tools import Tool, describe_missing, find_tools, run_tool, run_tools
from holdfast.host.process.processes import read_stat
from tests.diagnosis.live.bench import behaving, explain, look, stand_still
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.diagnosis.live.gather.snapshot import ProcessFacts
    from holdfast.diagnosis.live.gather.target import LiveTarget

pytestmark = [pytest.mark.process, pytest.mark.requirement("DIAG-07", "DIAG-01")]


def tool(directory: Path, name: str, body: str) -> str:
    """A stand-in for a tool on PATH, in Python."""
    path = directory / name
    path.write_text(f"#!{sys.executable}\nimport os, signal, sys, time\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def facts_of(target: LiveTarget) -> ProcessFacts:
    return take_snapshot((target.roots[0].pid,)).processes[0]


def state_of(target: LiveTarget) -> str:
    found = read_stat(target.roots[0].pid)
    return "gone" if found is None else found.state


def test_missing_tools_are_told_with_what_they_would_add(tmp_path: Path) -> None:
    missing = describe_missing(str(tmp_path))
    assert len(missing) == len(Tool)
    assert any("pip install py-spy" in line for line in missing)
    assert find_tools(str(tmp_path)) == {}


@pytest.mark.slow
def test_a_report_without_any_tool_is_still_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with behaving("deadlock", tmp_path) as target:
        stand_still(tmp_path)
        monkeypatch.setenv("PATH", str(tmp_path))
        report = look(target, deep=True)
    assert report.verdict.kind.value == "deadlock", explain(report)
    calls = next(section for section in report.sections if section.name == "calls")
    assert any("py-spy is not installed" in line for line in calls.unread)


@pytest.mark.slow
def test_a_tool_that_does_not_end_is_ended_with_all_it_started(tmp_path: Path) -> None:
    script = tool(
        tmp_path, "gdb",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('attached', flush=True)\n"
        "if os.fork() == 0:\n    time.sleep(1000)\ntime.sleep(1000)",
    )  # fmt: skip
    with behaving("pipe", tmp_path) as target:
        run = run_tool(Tool.GDB, (script, "-p", "1"), facts_of(target), ours=True, limit_s=8.0)
    assert "attached" in run.text
    assert "was not done within" in run.problem


def test_a_target_that_a_tool_left_stopped_is_continued(tmp_path: Path) -> None:
    with behaving("pipe", tmp_path) as target:
        pid = target.roots[0].pid
        script = tool(tmp_path, "py-spy", f"os.kill({pid}, signal.SIGSTOP)")
        run = run_tool(Tool.PY_SPY, (script,), facts_of(target), ours=True)
        assert (run.left_stopped, run.continued) == (True, True)
        wait_until(lambda: state_of(target) == "S", what="it waits for its pipe again")


def test_a_target_that_is_not_ours_is_told_of_and_not_signalled(tmp_path: Path) -> None:
    with behaving("pipe", tmp_path) as target:
        pid = target.roots[0].pid
        script = tool(tmp_path, "py-spy", f"os.kill({pid}, signal.SIGSTOP)")
        run = run_tool(Tool.PY_SPY, (script,), facts_of(target), ours=False)
        assert (run.left_stopped, run.continued) == (True, False)
        assert state_of(target) == "T"


def test_a_target_that_was_stopped_before_stays_stopped(tmp_path: Path) -> None:
    with behaving("pipe", tmp_path) as target:
        pid = target.roots[0].pid
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: state_of(target) == "T")
        script = tool(tmp_path, "py-spy", "print('stacks')")
        run = run_tool(Tool.PY_SPY, (script,), facts_of(target), ours=True)
        assert not run.continued
        assert state_of(target) == "T"


def test_no_tool_is_run_on_a_task_in_uninterruptible_sleep(tmp_path: Path) -> None:
    script = tool(tmp_path, "strace", f"open({str(tmp_path / 'ran')!r}, 'w')")
    with behaving("vfork", tmp_path) as target:
        wait_until(lambda: facts_of(target).main.wait is Wait.VFORK, what="its sleep")
        run = run_tool(Tool.STRACE, (script,), facts_of(target), ours=True)
    assert "uninterruptible" in run.problem
    assert not (tmp_path / "ran").exists()


def test_a_denied_attach_is_reported_as_such(tmp_path: Path) -> None:
    body = "print('strace: attach: ptrace(PTRACE_SEIZE, 7): Operation not permitted')\nsys.exit(1)"
    script = tool(tmp_path, "strace", body)
    with behaving("pipe", tmp_path) as target:
        run = run_tool(Tool.STRACE, (script,), facts_of(target), ours=True)
    assert run.problem.startswith("permission denied")


def test_secrets_and_tabs_in_a_tools_output_are_taken_out(tmp_path: Path) -> None:
    script = tool(tmp_path, "strace", "print('write(1, \"\\tHF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789\")')")
    with behaving("pipe", tmp_path) as target:
        run = run_tool(Tool.STRACE, (script,), facts_of(target), ours=True)
    assert "hf_abcdef" not in run.text
    assert "\t" not in run.text


def test_a_process_that_has_ended_is_not_attached_to(tmp_path: Path) -> None:
    with behaving("pipe", tmp_path) as target:
        facts = facts_of(target)
    run = run_tool(Tool.GDB, ("/bin/true",), facts, ours=True)
    assert run.problem == "the process has ended"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_the_real_strace_names_the_call_and_lets_go(tmp_path: Path) -> None:
    with behaving("pipe", tmp_path) as target:
        begun = time.monotonic()
        runs = run_tools(facts_of(target), ours=True, tools={Tool.STRACE: find_tools()[Tool.STRACE]})
        took = time.monotonic() - begun
        wait_until(lambda: state_of(target) == "S", what="it waits for its pipe again")
    assert took < 60
    assert "read(" in runs[0].text or runs[0].problem.startswith("permission denied"), runs[0]
