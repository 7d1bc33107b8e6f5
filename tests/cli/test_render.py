"""Words on the screen: plain text, colours only where they are seen, nothing that steers a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.cli import render
from holdfast.model.finding import Finding, Level
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.cli

SHOW = """
from holdfast.cli import render
render.table(["id", "state"], [["a", "failed"], ["b\\x1b[2J", None]], right=[0])
print(render.paint("running"))
render.heading("cards")
import sys
print("rich" in sys.modules)
"""


def on_terminal(code: str, **env: str) -> str:
    """What `code` prints to a real terminal."""
    main, side = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", **env}
    with subprocess.Popen([sys.executable, "-c", code], stdin=side, stdout=side, stderr=side, env=environ) as child:
        os.close(side)
        said = b""
        while True:
            try:
                piece = os.read(main, 65536)
            except OSError:
                # The last holder of the terminal has gone: that is its end (Linux answers EIO).
                break
            if not piece:
                break
            said += piece
        os.close(main)
        assert child.wait(LIMIT_S) == 0, said
    return said.decode()


def test_a_table_is_plain_and_aligned_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    render.table(["id", "mem", "state"], [["a", 5, "running"], ["bcd", None, "x\x1b[31m"]], right=[1])
    assert capsys.readouterr().out == "ID   MEM  STATE\na      5  running\nbcd    -  x\\x1b[31m\n"


def test_an_empty_table_is_its_headers(capsys: pytest.CaptureFixture[str]) -> None:
    render.table(["id", "state"], [])
    assert capsys.readouterr().out == "ID  STATE\n"


def test_pairs_are_aligned_and_further_lines_indented(capsys: pytest.CaptureFixture[str]) -> None:
    render.pairs([("id", "x"), ("reason", "one\ntwo"), ("none", None)], indent=2)
    assert capsys.readouterr().out == "  id      x\n  reason  one\n          two\n  none    -\n"
    render.pairs([])
    assert capsys.readouterr().out == ""


def test_json_states_its_schema_and_encodes_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding("disk.bytes", Level.FAIL, "/", "full", "make room")
    render.print_json({"level": Level.WARN, "findings": (finding,), "name": "\u00fc"})
    out = capsys.readouterr().out
    assert json.loads(out) == {
        "schema": 1,
        "level": "warn",
        "findings": [{"id": "disk.bytes", "level": "fail", "subject": "/", "evidence": "full", "remedy": "make room"}],
        "name": "\u00fc",
    }
    assert "\u00fc" in out


def test_notes_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    render.note("card 0\x07 is held")
    assert capsys.readouterr() == ("", "holdfast: card 0\\x07 is held\n")


def test_a_terminal_gets_colours_from_rich(tmp_path: Path) -> None:
    said = on_terminal(SHOW)
    assert "\x1b[31mfailed" in said
    assert "\x1b[32mrunning\x1b[0m" in said
    assert "\x1b[1mcards\x1b[0m" in said
    assert "\x1b[2J" not in said
    assert said.rstrip().endswith("True")


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_are_left_out_on_request(env: dict[str, str]) -> None:
    said = on_terminal(SHOW, **env)
    assert "failed" in said
    assert "\x1b[3" not in said
    assert "\x1b[1mcards" not in said


def test_without_a_terminal_nothing_is_coloured_and_rich_is_not_imported() -> None:
    environ = {**os.environ, "FORCE_COLOR": "1"}
    done = subprocess.run([sys.executable, "-c", SHOW], env=environ, capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout
    assert done.stdout.endswith("False\n")
