"""``holdfast preflight``: the checks for people and for programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.cli.render.findings import print_findings
from holdfast.model.finding import Finding, Level, rank

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli

FINDINGS = (
    Finding("command", Level.FAIL, "train", "is not there\x1b[2J", "correct it"),
    Finding("workdir", Level.PASS, "/w", "exists"),
    Finding("quota", Level.UNKNOWN, "", "cannot be read"),
    Finding("shm", Level.WARN, "/dev/shm", "64 MiB", "make it larger"),
)


def test_findings_go_from_mild_to_grave_with_their_remedies(capsys: pytest.CaptureFixture[str]) -> None:
    print_findings(FINDINGS)
    assert capsys.readouterr().out == (
        "pass     workdir /w: exists\n"
        "unknown  quota: cannot be read\n"
        "warn     shm /dev/shm: 64 MiB\n"
        "         do: make it larger\n"
        "fail     command train: is not there\\x1b[2J\n"
        "         do: correct it\n"
        "1 pass, 1 unknown, 1 warn, 1 fail: the job would not start\n"
    )
    print_findings([Finding("cards", Level.PASS, "cards (simulated)", "1 can be had")])
    assert capsys.readouterr().out == "pass     cards (simulated): 1 can be had\n1 pass: the job would start\n"
    print_findings(())
    assert capsys.readouterr().out == "no checks: the job would start\n"


def test_strict_lets_a_warning_fail_but_never_softens() -> None:
    assert rank(FINDINGS[1:], strict=False) is Level.WARN
    assert rank(FINDINGS[1:], strict=True) is Level.FAIL
    assert rank(FINDINGS, strict=False) is Level.FAIL
    assert rank(FINDINGS[1:3], strict=True) is Level.UNKNOWN


def test_a_good_job_passes_and_nothing_is_started(holdfast: Command, isolated_environment: dict[str, str]) -> None:
    ended = holdfast("preflight", "--", "true")
    assert (ended.code, ended.err) == (0, ""), ended
    assert ended.out.rstrip().endswith(": the job would start")
    assert list(Path(isolated_environment["HOLDFAST_RUNS"]).iterdir()) == []


def test_a_bad_job_is_78_with_evidence_and_remedy(holdfast: Command, tmp_path: Path) -> None:
    ended = holdfast("preflight", "--input", "absent.csv", "--", "no-such-program-here")
    assert (ended.code, ended.err) == (78, ""), ended
    assert f"{tmp_path}/absent.csv" in ended.out
    assert "no-such-program-here" in ended.out
    assert ended.out.count("\n         do: ") >= 2
    assert ended.out.rstrip().endswith(": the job would not start")


@pytest.mark.slow
def test_preflight_as_json(holdfast: Command) -> None:
    value = holdfast("preflight", "--json", "--", "true").json()
    assert (value["job"], value["exit_code"]) == ("true", 0)
    assert {"id", "level", "subject", "evidence", "remedy"} == set(value["findings"][0])
    assert {finding["level"] for finding in value["findings"]} <= {"pass", "unknown", "warn"}
    assert holdfast("preflight", "--json", "--", "no-such-program-here").json()["level"] == "fail"


@pytest.mark.requirement("PRE-02")
def test_PRE_02_a_malformed_config_fails_with_path_and_line(holdfast: Command, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"lr": 1e-3,\n "epochs": }\n')
    ended = holdfast("preflight", "--config", "config.json", "--", "true")
    assert ended.code == 78, ended
    assert f"{tmp_path}/config.json" in ended.out
    assert "line 2" in ended.out or "config.json:2" in ended.out


@pytest.mark.slow
def test_a_card_without_room_fails_a_job_that_would_not_wait(holdfast: Command) -> None:
    small = {"HOLDFAST_SIMULATED_GPUS": "1x4GiB"}
    refused = holdfast("preflight", "--gpus", "1", "--", "true", env=small)
    assert refused.code == 78, refused
    assert "(simulated)" in refused.out
    assert holdfast("preflight", "--gpus", "1", "--wait", "1h", "--", "true", env=small).code == 0
    assert holdfast("preflight", "--gpus", "1", "--min-free", "1GiB", "--", "true", env=small).code == 0


def test_a_rules_file_that_cannot_be_trusted_is_an_error(
    holdfast: Command, isolated_environment: dict[str, str]
) -> None:
    rules = Path(isolated_environment["HOLDFAST_RULES"])
    rules.write_text("max_hold = '1h'\n")
    rules.chmod(0o666)
    ended = holdfast("preflight", "--", "true")
    assert ended.code in (74, 78), ended
    assert str(rules) in ended.err + ended.out
