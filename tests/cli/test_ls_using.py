"""`ls --using`: what a deploy asks before it overwrites files under a live run (PROC-21)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


@pytest.mark.slow
def test_PROC_21_a_path_that_a_live_run_executes_from_is_named(holdfast: Command, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    script = code / "train.py"
    script.write_text("import time\ntime.sleep(60)\n", encoding="utf-8")
    started = holdfast("run", "-d", "--prove", "0", "--name", "user", "--", "python3", str(script))
    assert started.code == 0, started.err
    try:
        wait_until(lambda: holdfast("ls", "--using", str(code)).code == 75)
        told = holdfast("ls", "--using", str(code), "--json")
        assert told.code == 75
        (user,) = json.loads(told.out)["users"]
        assert "user" in user["run_id"]
        assert user["files"] == [str(script)]
        (tmp_path / "elsewhere").mkdir()
        assert holdfast("ls", "--using", str(tmp_path / "elsewhere")).code == 0
    finally:
        stopped = holdfast("stop", "user", "--now")
    assert stopped.code == 0, stopped.err
    assert holdfast("ls", "--using", str(code)).code == 0
