"""What a rehearsal reads of an attempt: logged values, checkpoints, the last words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.agent.drill.watch import count_files, list_steps, read_last_line, read_rows

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.contract, pytest.mark.requirement("CKPT-15")]


def test_rows_are_read_by_step_with_their_pace(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step":3,"epoch":null,"time":100.0,"loss":0.5}\n'
        '{"step":4,"epoch":1,"time":100.5,"loss":0.25,"lr":1}\n'
        '{"step":4,"epoch":1,"time":100.6,"loss":0.125}\n'
        '{"step":null,"time":1.0,"loss":9}\nnot json\n{"step":true}\n{"step":5,"time":101.0,"lo',
        encoding="ascii",
    )
    rows, pace = read_rows(str(path))
    assert rows == {3: {"loss": 0.5}, 4: {"epoch": 1, "loss": 0.25, "lr": 1, "loss'": 0.125}}
    assert [(round(at, 3), step) for at, step in pace] == [(0.0, 3), (0.5, 4), (0.6, 4)]
    assert read_rows(str(tmp_path / "none")) == ({}, [])


def test_checkpoints_are_found_in_the_directory_and_one_below(tmp_path: Path) -> None:
    for name in ("step-5", "step-10", ".step-15.abcd1234", "step-3.bad-1", "mine-00000000/step-7"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "step-5" / "x").write_bytes(b"")
    (tmp_path / ".lock").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "mine-00000000")
    assert sorted(step for _, step in list_steps(str(tmp_path))) == [5, 7, 10]
    assert list_steps(str(tmp_path / "none")) == []
    assert count_files(str(tmp_path)) == 1


def test_the_last_line_is_that_which_says_something(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"x" * 20_000 + b"\nValueError: no \xff such column\n\n  \n")
    assert read_last_line(str(path)) == "ValueError: no \ufffd such column"
    assert read_last_line(str(tmp_path / "none")) == ""
