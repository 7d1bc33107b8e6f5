"""Clock, names and caches in preflight: asked when something leaves the box, bounded, and never guessed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.checks import disk, environment
from holdfast.agent.checks.context import CheckContext
from holdfast.core.rules.rules import Rules
from holdfast.host.clock import epoch_s
from holdfast.host.process import libc
from holdfast.model.finding import Finding, Level
from holdfast.model.job import JobSpec, TrackerMode
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

pytestmark = pytest.mark.process


def situation(tracker: TrackerMode = TrackerMode.ONLINE, **environ: str) -> CheckContext:
    return CheckContext(JobSpec("t", ("true",), "/", tracker=tracker), Rules(), environ, now_epoch_s=epoch_s())


def levels(findings: Iterable[Finding]) -> list[Level]:
    return [finding.level for finding in findings]


@pytest.mark.requirement("PRE-21")
def test_PRE_21_a_job_that_stays_on_the_box_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "resolve_host", lambda *_: pytest.fail("a name was resolved"))
    for tracker in (TrackerMode.OFFLINE, TrackerMode.NONE):
        assert levels(environment.check_names(situation(tracker))) == []
        assert levels(environment.check_clock(situation(tracker))) == []


@pytest.mark.requirement("PRE-21")
@pytest.mark.parametrize(("kept", "level"), [(True, Level.PASS), (False, Level.WARN), (None, Level.UNKNOWN)])
def test_PRE_21_a_clock_that_nothing_keeps_is_told(
    monkeypatch: pytest.MonkeyPatch, kept: bool | None, level: Level
) -> None:
    monkeypatch.setattr(environment, "is_clock_synchronised", lambda: kept)
    assert levels(environment.check_clock(situation())) == [level]


def test_a_clock_before_this_programs_own_files_fails() -> None:
    (found,) = environment.judge_clock(os.stat(environment.__file__).st_mtime - 10 * 86400.0)
    assert found.level is Level.FAIL
    assert "10 days" in found.evidence


def test_the_kernel_answers_about_its_clock() -> None:
    assert libc.is_clock_synchronised() in (True, False, None)


@pytest.mark.requirement("PRE-21")
def test_PRE_21_a_name_without_address_fails_and_behind_a_proxy_warns() -> None:
    assert environment.resolve_host("localhost", {}).level is Level.PASS
    name = "no-such-host.invalid"
    assert environment.resolve_host(name, {}).level is Level.FAIL
    found = environment.resolve_host(name, {"https_proxy": "http://user:secret@proxy:3128"})
    assert found.level is Level.WARN
    assert "https_proxy" in found.evidence
    assert "secret" not in found.evidence


def test_a_resolver_that_does_not_answer_costs_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: wait_until(lambda: False))
    monkeypatch.setattr(environment, "RESOLVE_WITHIN_S", 0.2)
    assert "no answer" in environment.resolve_host("example.org", {}).evidence


def test_the_name_of_a_tracker_of_ones_own_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def resolve(host: str, _: object) -> Finding:
        asked.append(host)
        return Finding("names", Level.PASS, host, "")

    monkeypatch.setattr(environment, "resolve_host", resolve)
    list(environment.check_names(situation(WANDB_BASE_URL="https://me@wandb.example.org:8443/x")))
    list(environment.check_names(situation()))
    assert asked == ["wandb.example.org", "api.wandb.ai"]


@pytest.mark.requirement("STOR-05")
def test_STOR_05_the_disk_of_declared_caches_is_looked_at_instead_of_the_usual_one(tmp_path: Path) -> None:
    (tmp_path / ".cache/huggingface").mkdir(parents=True)
    environ = {"HOME": str(tmp_path)}
    usual = {name for name, *_ in disk.list_places(CheckContext(JobSpec("t", ("true",), "/"), Rules(), environ))}
    spec = JobSpec("t", ("true",), "/", caches="/data")
    moved = {name: path for name, path, *_ in disk.list_places(CheckContext(spec, Rules(), environ))}
    assert "HF_HOME" in usual
    assert "HF_HOME" not in moved
    assert moved["caches"] == "/data"
