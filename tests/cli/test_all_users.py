"""``holdfast ls --all-users``: the runs of every account, each with its user."""

from __future__ import annotations

import json
import os
import pwd
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.view.runs import accounts
from holdfast.model.errors import StorageError
from tests.cli.queues import say
from tests.rundirs import ended, make_run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.cli


def test_the_runs_of_all_accounts_are_listed_and_named(
    tmp_path: Path, isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(isolated_environment["HOLDFAST_RUNS"], state=ended())
    home = tmp_path / "anna"
    other = make_run(str(home / ".local/share/holdfast/runs"), "20261120-110000-hers-0a1c", state=ended())
    accounts = [SimpleNamespace(pw_dir=str(home)), SimpleNamespace(pw_dir="/"), SimpleNamespace(pw_dir="/nonexistent")]
    monkeypatch.setattr(pwd, "getpwall", lambda: accounts)
    done = say("ls", "--all-users")
    rows = [line.split()[:2] for line in done.out.splitlines()]
    me = pwd.getpwuid(os.geteuid()).pw_name
    assert rows == [["USER", "RUN"], [me, os.path.basename(other)], [me, "20261120-100000-digits-0a1b"]]
    assert [run["user"] for run in json.loads(say("ls", "--all-users", "--json", "-n", "1").out)["runs"]] == [me]
    assert say("ls", "--all-users", "--using", "/").code == 64
    if os.geteuid() == 0:
        assert say("show", os.path.basename(other)).out.startswith(os.path.basename(other))


def test_leases_that_cannot_be_read_are_told(
    isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise StorageError("the lease area is a link")

    make_run(isolated_environment["HOLDFAST_RUNS"], state=ended())
    monkeypatch.setattr(accounts, "open_existing_area", refuse)
    monkeypatch.setattr(pwd, "getpwall", list)
    assert "closed runs are not here: the lease area is a link" in say("ls", "--all-users").err


@pytest.mark.slow
def test_a_home_that_hangs_delays_nobody_and_is_named(
    tmp_path: Path, isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(isolated_environment["HOLDFAST_RUNS"], state=ended())
    stuck = f"{tmp_path}/stuck"
    look = os.path.isdir

    def hang(path: str) -> bool:
        # As a mount of the account whose server is gone: the look never comes back.
        if path.startswith(stuck):
            signal.pause()
        return look(path)

    monkeypatch.setattr(os.path, "isdir", hang)
    there = [SimpleNamespace(pw_dir=stuck), SimpleNamespace(pw_dir="/nonexistent")]
    monkeypatch.setattr(pwd, "getpwall", lambda: there)
    monkeypatch.setattr(accounts, "ALL_LIMIT_S", 0.2)
    done = say("ls", "--all-users")
    assert (done.code, "20261120-100000-digits-0a1b" in done.out) == (0, True)
    assert f"not read, since they gave no answer: {stuck}/.local/share/holdfast/runs" in done.err
    monkeypatch.setattr(accounts, "TOTAL_LIMIT_S", 0.0)
    assert f"{stuck}/.local/share/holdfast/runs, /nonexistent/" in say("ls", "--all-users").err
