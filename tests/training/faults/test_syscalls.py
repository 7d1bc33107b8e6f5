"""Seen from outside, with strace: what the writer process asks the kernel for, and what it does when that says no."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.training.faults import support
from tests.training.faults.driving import start
from tests.training.test_writing import judge_order
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.training.faults.driving import Trainer

__all__ = ["start"]
pytestmark = pytest.mark.process
LINE = re.compile(r"(\d+) +(\w+)\((.*)")
RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)")


@pytest.fixture
def traced(tmp_path: Path) -> Callable[..., tuple[list[str], subprocess.CompletedProcess[str]]]:
    """Runs a trainer that saves once, under strace with some options; the lines of strace and how it ended."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed; `make test` installs what scripts/system-packages.txt names")

    def call(*options: str, numbers: int = 1000) -> tuple[list[str], subprocess.CompletedProcess[str]]:
        log = tmp_path / "strace"
        done = subprocess.run(
            [
                *("strace", "-f", "-y", "-qq", "-s", "0", "-o", str(log), *options),
                *support.payload("trainer", tmp_path / "c", numbers, "ask"),
            ],
            env=support.environ(),
            input="save\nwait\n",
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        if "PTRACE" in done.stderr or "ptrace" in done.stderr:
            pytest.skip(f"no process may be traced here: {done.stderr.strip()[:200]}")
        return log.read_text(errors="replace").splitlines(), done

    return call


def events(lines: list[str], root: str) -> list[tuple[str, str]]:
    """Kind and path (relative to `root`) of each call that succeeded, in the order in which they ended."""
    begun: dict[tuple[str, str], str] = {}
    found = []
    for line in lines:
        if match := RESUMED.match(line):
            pid, name, rest = match.groups()
            rest = begun.pop((pid, name), "") + rest
        elif match := LINE.match(line):
            pid, name, rest = match.groups()
            if rest.endswith("<unfinished ...>"):
                begun[pid, name] = rest.removesuffix("<unfinished ...>")
                continue
        else:
            continue
        if re.search(r"\) += -1", rest):
            continue
        kind = {"pwrite64": "pwrite", "renameat": "rename", "renameat2": "rename"}.get(name, name)
        texts = re.findall(r'"([^"]*)"', rest) if kind == "rename" else re.findall(r"^\d+<([^>]*)>", rest)
        if texts and texts[-1].startswith(root):
            found.append((kind, os.path.relpath(texts[-1], root)))
    return found


@pytest.mark.requirement("LIB-06", "CKPT-05", "B-25")
@pytest.mark.parametrize("numbers", [1000, 1_500_000], ids=["small", "direct"])
def test_the_kernel_is_asked_to_sync_everything_before_the_name_appears(
    numbers: int, traced: Callable[..., tuple[list[str], subprocess.CompletedProcess[str]]], tmp_path: Path
) -> None:
    # -s 0 would cut the names too: paths are printed whole, data is not asked for.
    lines, done = traced("-s", "200", "-e", "trace=pwrite64,fsync,fdatasync,rename,renameat,renameat2", numbers=numbers)
    assert done.returncode == 0, done.stderr
    judge_order(events(lines, str(tmp_path)), "c", "c/step-1")


@pytest.mark.requirement("LIB-06", "CKPT-05")
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("fsync:error=EIO:when=1+", "Input/output error"),
        ("fsync:error=ENOSPC:when=3+", "No space left"),
        ("pwrite64:error=ENOSPC:when=2+", "No space left"),
        ("pwrite64:error=EDQUOT:when=4+", "quota exceeded"),
        ("rename:error=EROFS:when=1+", "Read-only"),
    ],
)
def test_a_kernel_that_says_no_costs_the_save_and_nothing_else(
    fault: str,
    words: str,
    traced: Callable[..., tuple[list[str], subprocess.CompletedProcess[str]]],
    start: Callable[..., Trainer],
    tmp_path: Path,
) -> None:
    first = start(tmp_path / "c")
    first.resumed()
    first.save()
    first.saved()
    assert first.quit() == 0
    name = fault.partition(":")[0]
    _, done = traced("-e", f"trace={name}", "-e", f"inject={fault}")
    assert "the checkpoint of step 2 was not saved: " in done.stderr, done.stderr
    assert words in done.stderr
    assert "step 1 is the newest durable one" in done.stderr
    assert '{"failed": ' in done.stdout
    assert done.returncode == 0, "training goes on"
    assert support.newest(tmp_path / "c") == 1
    assert support.leftovers(tmp_path / "c") == []


@pytest.mark.requirement("CKPT-08")
@pytest.mark.parametrize(
    "fault", ["fsync:error=EIO:when=1", "pwrite64:error=ENOSPC:when=2", "rename:error=ESTALE:when=1"]
)
def test_what_fails_once_is_tried_once_more(
    fault: str,
    traced: Callable[..., tuple[list[str], subprocess.CompletedProcess[str]]],
    tmp_path: Path,
) -> None:
    (tmp_path / "c").mkdir()
    _, done = traced("-e", f"trace={fault.partition(':')[0]}", "-e", f"inject={fault}")
    assert done.returncode == 0, done.stderr
    assert support.newest(tmp_path / "c") == 1
