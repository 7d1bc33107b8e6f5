"""`holdfast fault`: the list, one run with its verdict, and what is said of what is not possible."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.doctor.faults import decide_exit, judge_records
from holdfast.cli.render.faults import print_report, summarise_faults
from holdfast.faults.spec import FaultJudgement, FaultReport
from holdfast.faults.table import FAULTS, find_fault
from tests.cli.live import started
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


def test_the_list_names_every_fault_and_why_some_are_not_possible(holdfast: Command) -> None:
    text = holdfast("fault", "list")
    listed = holdfast("fault", "list", "--json").json()["faults"]
    assert text.code == 0
    assert [row["name"] for row in listed] == [fault.name for fault in FAULTS]
    for row in listed:
        assert bool(row["reason"]) != row["possible"]
        assert row["name"] in text.out
    cards = [row for row in listed if "nvml_library" in row["needs"]]
    assert cards
    assert all("--nvml-library" in row["reason"] for row in cards)


@pytest.mark.slow
def test_a_library_makes_the_faults_of_cards_possible(holdfast: Command, nvml_library: str) -> None:
    listed = holdfast("fault", "list", "--json", "--nvml-library", nvml_library).json()["faults"]
    assert all(row["possible"] for row in listed if row["needs"] == ["nvml_library"])


@pytest.mark.slow
def test_a_fault_is_run_judged_and_cleared_away(holdfast: Command) -> None:
    ended = holdfast("fault", "run", "killed", "edited-script")
    assert ended.code == 0, ended
    lines = ended.out.splitlines()
    assert lines[0].startswith("right       killed")
    assert "expected killed, said killed" in lines[0]
    assert lines[-1] == "2 right"
    assert os.listdir(os.environ["TMPDIR"]) == []
    assert os.listdir(os.environ["HOLDFAST_RUNS"]) == [], "its run is in the sandbox, not among the user's"


@pytest.mark.slow
def test_somebody_who_does_not_want_to_wait_leaves_nothing_behind(holdfast: Command) -> None:
    with started("fault", "run", "deadlock") as command:
        sandbox = wait_until(lambda: os.listdir(os.environ["TMPDIR"]), what="the sandbox")[0]
        wait_until(lambda: os.path.exists(f"{os.environ['TMPDIR']}/{sandbox}/marks"), what="the trouble")
        command.terminate()
        assert command.wait(LIMIT_S) == 130
    assert os.listdir(os.environ["TMPDIR"]) == []


@pytest.mark.slow
def test_a_sandbox_can_be_kept_and_looked_at(holdfast: Command) -> None:
    report = holdfast("fault", "run", "--keep", "--json", "key-error").json()["faults"][0]
    assert report["judgement"] == "right"
    assert report["proven"] == ["code 1"]
    runs = f"{report['box']}/runs"
    assert os.stat(report["box"]).st_mode & 0o777 == 0o700
    shown = holdfast("show", os.listdir(runs)[0], "--runs", runs, "--json")
    assert shown.code == 0, shown


def test_what_is_not_possible_here_says_why_and_has_its_own_exit_code(holdfast: Command) -> None:
    ended = holdfast("fault", "run", "gpu-lost")
    assert ended.code == 78
    assert ended.out.startswith("impossible  gpu-lost")
    assert "--nvml-library PATH" in ended.out


@pytest.mark.parametrize(
    ("words", "said"),
    [(("nonsense",), "no fault is called"), ((), "no fault is named"), (("--all", "killed"), "and --all is given")],
)
def test_wrong_words_are_refused(holdfast: Command, words: tuple[str, ...], said: str) -> None:
    ended = holdfast("fault", "run", *words)
    assert ended.code == (66 if words == ("nonsense",) else 64)
    assert said in ended.err


def test_a_wrong_library_is_refused_before_anything_starts(holdfast: Command, tmp_path: Path) -> None:
    ended = holdfast("fault", "run", "gpu-lost", "--nvml-library", str(tmp_path / "libnvidia-ml.so.1"))
    assert ended.code == 78
    assert "there is no such file" in ended.out


def test_names_are_completed(holdfast: Command) -> None:
    words = {"_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": "holdfast fault run fuse-", "COMP_CWORD": "3"}
    from holdfast.cli import COMPLETE_VARIABLE

    words[COMPLETE_VARIABLE] = words.pop("_HOLDFAST_COMPLETE")
    offered = holdfast(env=words).out
    assert "fuse-stale" in offered
    assert "disk-full" not in offered


@pytest.mark.parametrize(
    ("judged", "code"),
    [
        ((FaultJudgement.RIGHT, FaultJudgement.IMPOSSIBLE), 0),
        ((FaultJudgement.RIGHT, FaultJudgement.WRONG), 1),
        ((FaultJudgement.NOT_REAL,), 1),
        ((FaultJudgement.BROKEN, FaultJudgement.RIGHT), 1),
        ((FaultJudgement.IMPOSSIBLE, FaultJudgement.IMPOSSIBLE), 78),
    ],
)
def test_the_exit_code_says_the_worst(judged: tuple[FaultJudgement, ...], code: int) -> None:
    assert decide_exit([FaultReport("x", judgement) for judgement in judged]) == code


def test_a_wrong_verdict_is_shown_with_its_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    verdict: dict[str, object] = {"evidence_for": [{"text": "said\x1b[31m so"}], "unknown": [{"text": "not readable"}]}
    report = FaultReport(
        "killed", FaultJudgement.WRONG, ("killed",), "bug", "V12", "likely", proven=("signal 9",), verdict=verdict
    )
    print_report(report)
    out = capsys.readouterr().out
    for words in ("wrong", "expected killed, said bug (likely, V12)", "signal 9", "not readable"):
        assert words in out
    assert "\x1b" not in out
    assert summarise_faults([report, report]) == "2 wrong"


@pytest.mark.requirement("GPUH-03")
@pytest.mark.parametrize(
    ("name", "said"),
    [("injected-xid", "hardware"), ("forged-kernel-line", "prevented"), ("xid-45-alone", "prevented")],
)
def test_kernel_lines_are_believed_only_from_the_kernel(name: str, said: str, tmp_path: Path) -> None:
    fault = find_fault(name)
    path = tmp_path / "kmsg"
    path.write_text("".join(f"{record}\n" for record in fault.records))
    report = judge_records(fault, str(path))
    assert (report.judgement, report.said) == (FaultJudgement.RIGHT, said)


@pytest.mark.requirement("GPUH-04")
def test_a_kernel_log_that_cannot_be_read_is_no_clean_one(tmp_path: Path) -> None:
    report = judge_records(find_fault("forged-kernel-line"), str(tmp_path / "nothing"))
    assert report.judgement is FaultJudgement.NOT_REAL
    assert report.reason
