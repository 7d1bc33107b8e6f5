"""``holdfast notify test``: one message by every way, and what was not taken."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


def test_a_message_is_sent_by_every_way_and_a_way_that_fails_is_named(holdfast: Command, tmp_path: Path) -> None:
    heard = tmp_path / "heard.json"
    done = holdfast("notify", "test", "--notify-command", f"tee {heard}")
    assert (done.code, done.err) == (0, "holdfast: command: taken\n"), done
    assert json.loads(heard.read_text())["host"]
    failed = holdfast(
        "notify", "test", "--json", "--notify-command", "false", "--notify-webhook", "http://127.0.0.1:1/"
    )
    assert failed.code == 1, failed
    assert all(failed.json()["problems"].values()), failed


def test_nobody_who_could_be_told_is_refused_with_what_to_set(holdfast: Command) -> None:
    done = holdfast("notify", "test")
    assert done.code == 64, done
    assert "holdfast config set notify.email" in done.err
