"""docs/messages.md: its examples, typed as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.job.documents import parse_yaml
from holdfast.cli.job.jobfile import flatten_keys
from holdfast.cli.job.user_defaults import defaults_path, read_stated

pytestmark = [pytest.mark.cli, pytest.mark.slow]

PAGE = (Path(__file__).parents[2] / "docs" / "messages.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def test_the_commands_say_what_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "holdfast").write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n', encoding="ascii")
    os.chmod(tmp_path / "holdfast", 0o700)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    (block,) = blocks("console")
    code = 0
    for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
        words = ["sh", "-c", f"(exit {code}); ({command}) 2>&1"]
        done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        assert done.stdout.strip() == expected.strip(), command
        code = done.returncode
    assert "a test message" in (Path.home() / "message.json").read_text(encoding="utf-8")


def test_the_files_are_taken_as_they_stand() -> None:
    for block in blocks("yaml"):
        problems: list[object] = []
        assert flatten_keys(parse_yaml(block, "job.yaml"), "job.yaml", problems)  # type: ignore[arg-type]  # it only adds
        assert problems == []
    os.makedirs(os.path.dirname(defaults_path()), exist_ok=True)
    (text,) = blocks("toml")
    Path(defaults_path()).write_text(text, encoding="utf-8")
    assert [item.key for item in read_stated()] == ["priority", "gpu.wait", "notify.slack", "notify.on"]
