"""``holdfast patrol``: the status line, exit codes, telling people, and the entries of cron and systemd."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.patrol import schedule, scheduled
from holdfast.agent.patrol.schedule import TimerKind
from holdfast.host.clock import epoch_s, format_utc
from holdfast.model.errors import UsageError
from holdfast.model.run import Ended, Outcome
from tests.agent.driving import read_text
from tests.cli.clocks import make_clocks, with_clocks
from tests.cli.live import live_run
from tests.rundirs import dead_process, make_run, running, write
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


@pytest.fixture
def clocks(tmp_path: Path) -> Path:
    """The commands of a box's clocks, to be put on PATH."""
    return make_clocks(tmp_path / "clocks")


@pytest.mark.slow
@pytest.mark.requirement("MON-02", "MON-09")
def test_the_status_line_is_always_there(holdfast: Command) -> None:
    for _ in range(2):
        quiet = holdfast("patrol")
        assert (quiet.code, quiet.out) == (0, "0 runs\n")
    value = holdfast("patrol", "--json").json()
    assert (value["alive"], value["runs"], value["exit_code"]) == (0, [], 0)


@pytest.mark.slow
@pytest.mark.requirement("MON-02", "MON-15", "MON-13", "MON-06")
def test_a_dead_run_needs_a_person_and_a_harmless_word_does_not(holdfast: Command) -> None:
    with live_run(holdfast, "--name", "alive", job=("sh", "-c", "echo ready; echo mean squared Error 0.1; sleep 60")):
        fine = holdfast("patrol", "--all")
        assert fine.code == 0, fine
        assert fine.out.startswith("1 run: 1 running\nrunning  ")
        make_run(os.environ["HOLDFAST_RUNS"], "20261120-100000-gone-0a1b", running(), supervisor=dead_process())
        done = holdfast("patrol")
        assert done.code == 1
        assert done.out.splitlines() == [
            "2 runs: 1 running, 1 dead",
            "dead  20261120-100000-gone-0a1b  every process of it is gone and no end was recorded",
            "    -> holdfast restart 20261120-100000-gone-0a1b",
        ]


@pytest.mark.slow
@pytest.mark.requirement("MON-16")
def test_what_cannot_be_looked_at_is_told_apart(holdfast: Command, tmp_path: Path) -> None:
    absent = holdfast("patrol", "--runs", str(tmp_path / "none"))
    assert absent.code == 74
    half = make_run(os.environ["HOLDFAST_RUNS"])
    os.unlink(f"{half}/run.json")
    os.utime(half, (1000, 1000))
    done = holdfast("patrol", "--json")
    assert done.code == 1
    (run,) = done.json()["runs"]
    assert run["standing"] == "unknown"
    assert "run.json does not exist" in run["lines"][0]["text"]


@pytest.mark.slow
@pytest.mark.requirement("MON-02")
def test_an_end_is_told_once_and_a_person_hears_of_it(holdfast: Command, tmp_path: Path) -> None:
    fresh = Ended(format_utc(epoch_s()), Outcome.FAILED, 3, "token=hunter2hunter2 \x1b[31mexit code 3")
    make_run(os.environ["HOLDFAST_RUNS"], state=fresh)
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ncat >> {tmp_path}/heard\n")
    hook.chmod(0o755)
    words = ("patrol", "--since-last", "--notify-command", str(hook))
    first, second = holdfast(*words), holdfast(*words)
    assert (first.code, second.code) == (1, 0)
    assert "\x1b" not in first.out
    assert second.out == "1 run: 1 dead\n"
    message = json.loads((tmp_path / "heard").read_text())
    assert (message["event"], message["summary"]) == ("patrol", "1 run: 1 dead")
    assert "hunter2" not in json.dumps(message)
    assert holdfast("patrol", "--notify-command", "'").code == 64


@pytest.mark.slow
@pytest.mark.requirement("MON-18", "ETIQ-08", "RAIL-16")
def test_a_cron_entry_is_shown_made_only_with_consent_and_removed_without_a_trace(
    holdfast: Command, clocks: Path
) -> None:
    own = "MAILTO=anna\n5 4 * * * backup %d\n"
    (clocks / "table").write_text(own)
    env = with_clocks(clocks, "crontab")
    asked = holdfast("patrol", "install", env=env)
    assert asked.code == 64
    assert "holdfast patrol --since-last" in asked.out
    assert "no terminal to ask on" in asked.err
    assert (clocks / "table").read_text() == own
    for every in ("30m", "15m"):
        done = holdfast("patrol", "install", "--yes", "--every", every, env=env)
        assert done.code == 0, done
        table = (clocks / "table").read_text()
        assert table == own + done.out
        assert table.count("holdfast patrol --since-last") == 1
    line = next(line for line in table.splitlines() if "--since-last" in line)
    minutes = [int(text) for text in line.split()[0].split(",")]
    assert len(minutes) == 4
    assert not {0, 30} & set(minutes)
    assert f"HOLDFAST_RUNS={os.environ['HOLDFAST_RUNS']}" in line
    assert "nobody is told" in done.err
    refused = holdfast("patrol", "uninstall", env=env)
    assert refused.code == 64
    removed = holdfast("patrol", "uninstall", "--yes", env=env)
    assert removed.code == 0
    assert (clocks / "table").read_text() == own
    assert "there is no entry" in holdfast("patrol", "uninstall", env=env).err


@pytest.mark.slow
@pytest.mark.requirement("MON-18")
def test_the_entry_of_cron_can_be_run_as_it_stands(holdfast: Command, clocks: Path) -> None:
    import subprocess

    hook = clocks / "a hook"
    hook.write_text(f"#!/bin/sh\ncat > {clocks}/heard\n")
    hook.chmod(0o755)
    make_run(os.environ["HOLDFAST_RUNS"], "20261120-100000-gone-0a1b", running(), supervisor=dead_process())
    env = with_clocks(clocks, "crontab")
    done = holdfast("patrol", "install", "--yes", "--notify-command", f"'./{hook.name}'", cwd=hook.parent, env=env)
    assert done.code == 0, done
    line = next(line for line in done.out.splitlines() if "--since-last" in line)
    command = line.split(None, 5)[5].replace(r"\%", "%")
    bare = {"PATH": "/usr/bin:/bin", "HOME": os.environ["HOME"]}
    ran = subprocess.run(["sh", "-c", command], env=bare, cwd="/", timeout=LIMIT_S, check=False)
    assert ran.returncode == 1
    last = f"{os.environ['XDG_STATE_HOME']}/holdfast/{scheduled.LAST}"
    with open(last, encoding="utf-8") as file:
        assert file.read().startswith("1 run: 1 dead\n")
    assert json.loads((clocks / "heard").read_text())["runs"][0]["standing"] == "dead"


@pytest.mark.requirement("MON-18")
def test_a_table_that_cannot_be_read_is_not_overwritten(holdfast: Command, clocks: Path) -> None:
    env = with_clocks(clocks, "crontab")
    (clocks / "crontab").write_text(f"#!/bin/sh\necho called >> {clocks}/calls\necho cannot open >&2\nexit 1\n")
    done = holdfast("patrol", "install", "--cron", "--yes", env=env)
    assert done.code == 74
    assert "cannot open" in done.err
    assert (clocks / "calls").read_text() == "called\n"


@pytest.mark.requirement("MON-18", "SYSD-07", "SYSD-09")
def test_a_systemd_timer_is_made_and_removed_without_a_trace(
    holdfast: Command, clocks: Path, isolated_environment: dict[str, str]
) -> None:
    env = with_clocks(clocks, "systemctl")
    done = holdfast("patrol", "install", "--yes", "--every", "2h", env=env)
    assert done.code == 0, done
    where = f"{isolated_environment['XDG_CONFIG_HOME']}/systemd/user"
    texts = {}
    for name in sorted(os.listdir(where)):
        with open(f"{where}/{name}", encoding="utf-8") as file:
            texts[name] = file.read()
        assert texts[name] in done.out
    assert sorted(texts) == ["holdfast-patrol.service", "holdfast-patrol.timer"]
    when = re.search(r"^OnCalendar=([\d,]+):(\d\d)$", texts["holdfast-patrol.timer"], re.MULTILINE)
    assert when is not None
    assert len(when[1].split(",")) == 12
    assert when[2] not in ("00", "30")
    assert f'ExecStart="{sys.executable}" "-m" "holdfast" "patrol" "--since-last"' in texts["holdfast-patrol.service"]
    calls = (clocks / "calls").read_text().splitlines()
    assert calls[-2:] == ["--user daemon-reload", "--user enable --now holdfast-patrol.timer"]
    assert holdfast("patrol", "uninstall", "--yes", env=env).code == 0
    assert os.listdir(where) == []
    assert "--user disable --now holdfast-patrol.timer" in (clocks / "calls").read_text()


def test_a_box_without_any_clock_says_so(holdfast: Command, clocks: Path) -> None:
    done = holdfast("patrol", "install", env={"PATH": str(clocks / "none")})
    assert done.code == 64
    assert "neither a systemd user manager nor a crontab" in done.err


@pytest.mark.requirement("ETIQ-08")
@pytest.mark.parametrize("every_s", [300, 600, 900, 1200, 1800, 3600, 7200, 10800, 14400, 21600, 43200, 86400])
def test_no_account_calls_at_the_full_or_half_hour(every_s: float) -> None:
    for number in range(50):
        minutes, hours = schedule._times(every_s, f"user{number}@box")
        assert not {0, 30} & set(minutes)
        calls_a_day = len(minutes) * (len(hours) or 24)
        assert calls_a_day == 86400 / every_s


@pytest.mark.parametrize("every_s", [0.0, 60.0, 90.0, 420.0, 5400.0, 18000.0, 172800.0])
def test_an_interval_that_no_clock_has_is_refused(every_s: float) -> None:
    with pytest.raises(UsageError):
        schedule.build_entry(TimerKind.CRON, every_s, (), seed="x")


def test_only_what_is_ours_leaves_a_table_that_somebody_edited() -> None:
    ours = f"{schedule.BEGIN}\n1 * * * * python -m holdfast patrol --since-last > x 2>&1\n"
    assert schedule._without_ours(f"a\n{ours}{schedule.END}\nb\n") == "a\nb\n"
    assert schedule._without_ours(f"a\n{ours}b\n") == "a\nb\n"
    assert schedule._without_ours(f"a\n{schedule.BEGIN}\nb\n") == "a\nb\n"
    assert schedule._without_ours("") == ""


def test_a_percent_sign_and_a_line_break_do_not_end_an_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_RUNS", f"{tmp_path}/100%")
    assert r"100\%" in schedule.build_entry(TimerKind.CRON, 1800, (), seed="x").text
    assert "100%%" in schedule.build_entry(TimerKind.SYSTEMD, 1800, (), seed="x").text
    with pytest.raises(UsageError):
        schedule.build_entry(TimerKind.CRON, 1800, ("--notify-command", "a\nb"), seed="x")


@pytest.mark.slow
@pytest.mark.requirement("MON-05")
def test_a_long_run_without_a_watcher_is_warned_about(holdfast: Command, clocks: Path) -> None:
    def warnings(*words: str) -> list[str]:
        found = holdfast("preflight", "--json", "--expected", "3h", *words, "--", "true").json()["findings"]
        return [finding["id"] for finding in found if finding["level"] == "warn"]

    assert "time.watch" in warnings()
    assert "time.watch" not in warnings("--notify-command", "true")
    env = with_clocks(clocks, "crontab")
    assert holdfast("patrol", "install", "--yes", env=env).code == 0
    assert "time.watch" not in warnings()
    state = f"{os.environ['XDG_STATE_HOME']}/holdfast"
    record = json.loads(read_text(f"{state}/{scheduled.INSTALLED}"))
    write(f"{state}/{scheduled.INSTALLED}", json.dumps({**record, "at": format_utc(epoch_s() - 86400)}))
    assert "time.watch" in warnings()
    assert holdfast("patrol", "--since-last").code == 0
    assert "time.watch" not in warnings()
    assert stat.S_IMODE(os.stat(f"{state}/patrol.json").st_mode) == 0o600
