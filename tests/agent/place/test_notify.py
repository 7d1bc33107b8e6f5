"""The entry ``notify`` of a box: a test message from there, by the ways that a desk says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import holdfast.agent.__main__ as dispatch
from holdfast.model import wire
from holdfast.model.job import Channels, Notify
from tests.agent.messages.endpoints import make_program

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.mark.requirement("MON-17")
def test_a_place_sends_a_test_message_and_says_what_went_wrong(tmp_path: Path) -> None:
    hook = make_program(tmp_path / "hook", f"cat > {tmp_path}/got")
    asked = {
        "notify": wire.encode(Notify(command=(hook,))),
        "channels": wire.encode(Channels(slack=("secret:NONE",))),
        "place": "lab",
    }
    words = [sys.executable, "-I", "-S", str(dispatch.__file__), "notify"]
    done = subprocess.run(words, input=json.dumps(asked).encode(), capture_output=True, check=False)
    answer = json.loads(done.stdout)
    assert answer["problems"]["command"] is None, answer
    assert answer["problems"]["slack"].startswith("secret NONE is not on this box")
    got = json.loads((tmp_path / "got").read_text(encoding="utf-8"))
    assert (got["state"], got["place"]) == ("test", "lab")
    assert got["text"] == f"a test message: holdfast can reach you from here\non {os.uname().nodename} (lab)"
