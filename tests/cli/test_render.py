"""Words on the screen: plain text, colours only where they are seen, nothing that steers a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from holdfast.agent.control.stop import StopResult
from holdfast.agent.view.page.diagnosis import DiagnosisReport
from holdfast.cli import render
from holdfast.cli.render.diagnosis import print_answer
from holdfast.cli.render.job_change import describe_changes
from holdfast.cli.render.layout import format_table, measure
from holdfast.cli.render.start import describe_start
from holdfast.cli.render.stop import print_stopped
from holdfast.cli.verbs.restart import PlannedRestart
from holdfast.cli.verbs.restart import _print_changes as print_changes
from holdfast.model.finding import Finding, Level
from holdfast.model.origin import KeyChange
from holdfast.model.verdict import Confidence, FailureClass, LiveClass, Verdict
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.cli


def test_the_plan_of_a_restart_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    planned = PlannedRestart("r", (), ("/a\x1b[2J was changed",), "it was at \x1b]0;x", "not read\x1b[2J")
    print_changes(planned, as_json=False)
    told = capsys.readouterr()
    assert ("\x1b" in told.out + told.err, "was changed" in told.out, "not read" in told.err) == (False, True, True)


SHOW = """
from holdfast.cli import render
render.table(["id", "state"], [["a", "failed"], ["b\\x1b[2J", None]], right=[0])
print(render.paint("running"))
render.heading("cards")
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


def test_of_a_run_that_has_not_ended_nothing_is_said_of_another_attempt(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, told in ((LiveClass.STARTING, False), (FailureClass.BUG, True)):
        verdict = Verdict(kind, Confidence.LIKELY, "wait")
        print_answer(DiagnosisReport("a", "a", 2, False, "preflight", kind.value, "", verdict))
        assert ("tried again by itself" in capsys.readouterr().out) is told


def test_an_empty_table_is_its_headers(capsys: pytest.CaptureFixture[str]) -> None:
    render.table(["id", "state"], [])
    assert capsys.readouterr().out == "ID  STATE\n"


def test_pairs_are_aligned_and_further_lines_indented(capsys: pytest.CaptureFixture[str]) -> None:
    render.pairs([("id", "x"), ("reason", "one\ntwo"), ("none", None)], indent=2)
    assert capsys.readouterr().out == "  id      x\n  reason  one\n          two\n  none    -\n"
    render.pairs([])
    assert capsys.readouterr().out == ""


def test_json_steers_no_terminal_and_means_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """json.dumps escapes C0 alone; a terminal takes C1 (CSI is U+009B), DEL and marks of direction as well."""
    text = "a\x1b[2J\x9b31m\x7f\u202egnp.exe \u00fc"
    render.print_json({"name": text})
    out = capsys.readouterr().out
    assert json.loads(out)["name"] == text
    assert out.replace("\n", "").isprintable()
    assert "\u00fc" in out


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


def test_a_terminal_gets_colours() -> None:
    said = on_terminal(SHOW)
    assert "\x1b[31mfailed" in said
    assert "\x1b[32mrunning\x1b[0m" in said
    assert "\x1b[1mcards\x1b[0m" in said
    assert "\x1b[2J" not in said
    assert said.startswith("\x1b[1m      ID  STATE\x1b[0m\r\n       a  \x1b[31mfailed\x1b[0m\r\n")


def test_a_table_fits_the_terminal_and_keeps_ids_whole() -> None:
    run_id = f"20261120-104501-{'n' * 48}-3fa2"
    rows = [[run_id, "a long reason of many words", "x"], ["b", "short", "y" * 200]]
    lines = format_table(["id", "why", "z"], rows, width=100)
    assert all(len(line) <= len(run_id) + 2 + 6 + 2 + 72 for line in lines)
    assert sum(run_id in line for line in lines) == 1
    assert [line[len(run_id) + 2 :].split("  ")[0].strip() for line in lines][1:6] == [
        "a long",
        "reason",
        "of",
        "many",
        "words",
    ]
    assert "".join(line[len(run_id) + 10 :].strip() for line in lines if "y" in line[-72:]) == "y" * 200


def test_words_without_room_stand_below_their_row() -> None:
    rows = [["j" * 30, "queued", "it waits for two cards that somebody has"], ["b", "held", "-"]]
    assert format_table(["job", "state", "why"], rows, width=50) == [
        f"{'JOB':<30}  STATE",
        f"{'j' * 30}  queued",
        "    it waits for two cards that somebody has",
        f"{'b':<30}  held",
    ]


def test_a_table_that_fits_is_not_wrapped() -> None:
    assert format_table(["id", "why"], [["a", "b c d"]], width=9) == ["ID  WHY", "a   b c d"]
    assert format_table(["id", "why"], [["a", "b c d"]], width=8) == ["ID  WHY", "a   b c", "    d"]
    assert format_table(["id", "n"], [["a b", "1"]], width=5, right={1}) == ["ID  N", "a   1", "b"]


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_are_left_out_on_request(env: dict[str, str]) -> None:
    said = on_terminal(SHOW, **env)
    assert "failed" in said
    assert "\x1b[3" not in said
    assert "\x1b[1mcards" not in said


def test_without_a_terminal_nothing_is_coloured() -> None:
    environ = {**os.environ, "FORCE_COLOR": "1"}
    done = subprocess.run([sys.executable, "-c", SHOW], env=environ, capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout


def test_wide_characters_take_their_two_columns() -> None:
    lines = format_table(("what", "why"), [("评估 run", "a"), ("e\u0301tude", "b")])
    assert lines == ["WHAT      WHY", "评估 run  a", "e\u0301tude     b"]
    narrow = format_table(("run", "why"), [("20261120-100000-x-0a1b", "评估 " * 20)], width=60)
    assert max(measure(line) for line in narrow) <= 60
    assert sum(line.count("评估") for line in narrow) == 20


@pytest.mark.parametrize(
    ("cards", "words"), [((0,), "card 0 is held by anna"), ((0, 1), "cards 0, 1 are held by anna")]
)
def test_one_card_is_held_and_several_are(cards: tuple[int, ...], words: str) -> None:
    busy = [{"device": f"GPU-{index}", "index": index, "holder": "anna", "witness": "record"} for index in cards]
    assert describe_start({"kind": "waiting", "blocked_by": busy}, "r")[0] == f"in line for cards: {words}"


@pytest.mark.parametrize(
    ("key", "before", "after", "words"),
    [
        ("timeouts.total_s", 7200.0, 9000.0, "timeout 2h00m -> 2h30m"),
        ("timeouts.total_s", 7200.0, 7230.0, "timeout 7200 s -> 7230 s"),
        ("limits.memory_bytes", 8 << 30, (8 << 30) + 4096, "limits.memory 8589934592 B -> 8589938688 B"),
        ("env.A", "1", "", "env.A 1 -> ''"),
        ("env.A", "", None, "env.A '' -> none"),
    ],
)
def test_a_change_is_seen_in_its_words(key: str, before: object, after: object, words: str) -> None:
    assert describe_changes([KeyChange(key, before, after)]) == [words]


def test_a_stop_that_nothing_more_is_known_of_has_no_empty_end(capsys: pytest.CaptureFixture[str]) -> None:
    print_stopped(StopResult("r-1", 1, False, False, "running", "", None, 124, (), ()))
    assert capsys.readouterr().out == "r-1 is still running\n"
