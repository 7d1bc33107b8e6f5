"""The documents' commands: what a page shows behind ``$`` runs here, and says what the page says.

Each ```` ```console ```` block of README.md and docs/ is one session of a shell, in a directory that has what the page
takes for granted (the examples, or a ``train.py``). A page that names the host `gpu1.lab` has one: an account of a
private sshd with two simulated cards, and `gpu2.lab` is another; where there can be none its blocks are left out. One
that names the image `localhost/train:1` has a real Podman with it, or is left out. Every command must end with 0,
unless the page goes on with ``echo $?``. Every line that the page shows must be found in what the command printed,
word by word; ids, numbers, times and the account's name are not compared, exit codes are.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.host.process.processes import user_name
from tests.sshd import Sshd, end_masters, why_no_sshd
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if BLOCK.search(path.read_text())]
LONG_PAGES = {"README.md", "tutorial-rented-box.md", "places.md", "containers.md", "pull.md"}
"""Half a minute and more, but for the last two: five to ten seconds."""
HOST, OTHER = "gpu1.lab", "gpu2.lab"
"""The machines that pages reach by ssh; the places of them are called gpu1 and gpu2."""
IMAGE = "localhost/train:1"
PAGE_S = 200 * PATIENCE
"""For all commands of a page, of which the first to a place carries holdfast there."""
ACCOUNT = "anna"
"""Who sits at the keyboard in the documents."""
RUN_ID = re.compile(r"\d{8}-\d{6}-([A-Za-z0-9._-]+)-[0-9a-f]{4}\b")
WORDS = re.compile(r"[A-Za-z_]{2,}|(?<=exit )\d+")
TIMES = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z?|\b\d\d:\d\d:\d\d[.0-9]*Z?|\b[0-9.]+ (?:ms|s|min|h|B|[KMGT]iB)\b")


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a page, the lines shown under it, and where it stands."""

    command: str
    shown: tuple[str, ...]
    where: str


def read_sessions(path: Path) -> list[list[Step]]:
    """The console blocks of a page, each as its commands."""
    text = path.read_text(encoding="utf-8")
    sessions = []
    for block in BLOCK.finditer(text):
        steps: list[Step] = []
        for number, line in enumerate(block[1].splitlines(), start=text.count("\n", 0, block.start(1)) + 1):
            if line.startswith("$ "):
                steps.append(Step(line[2:], (), f"{path.name}:{number}"))
            elif line.strip():
                assert steps, f"{path.name}:{number}: output before any command"
                steps[-1] = Step(steps[-1].command, (*steps[-1].shown, line), steps[-1].where)
        sessions.append(steps)
    return sessions


def is_elsewhere(session: list[Step]) -> bool:
    """Whether a block needs a place."""
    return any(name in step.command for step in session for name in ("gpu1", "gpu2"))


def find_words(line: str) -> frozenset[str]:
    """What of a line is the same each time: its words, the names of runs, exit codes."""
    plain = TIMES.sub(" ", RUN_ID.sub(r"run_\1", line))
    # A column that a table has as soon as the time left can be told: on a busy machine that is later.
    return frozenset(WORDS.findall(plain.replace(ACCOUNT, user_name(os.geteuid())))) - {"LEFT"}


def run_session(steps: list[Step], directory: Path, scratch: Path) -> list[tuple[int, str]]:
    """Run commands in one shell; the exit code and everything printed, for each."""
    lines = []
    for number, step in enumerate(steps):
        status = shlex.quote(f"{scratch}/{number}.status")
        stopped = re.match(r"holdfast stop ((?:gpu1:)?\w+)", step.command)
        if stopped:
            # A reader has seen the run at work before; a busy machine may not have loaded its program yet.
            lines.append(f"for _ in {{1..40}}; do holdfast logs {stopped[1]} 2>&1 | grep -q . && break; done")
        lines.append(f"{{ {step.command}\n}} >{shlex.quote(f'{scratch}/{number}.out')} 2>&1")
        # The exit code is put back, because the next command may be `echo $?`.
        lines.append(f"status=$?; echo $status >{status}; (exit $status)")
    subprocess.run(
        ["bash", "-c", "\n".join(lines)], cwd=directory, stdin=subprocess.DEVNULL, timeout=PAGE_S, check=False
    )
    return [
        (int((scratch / f"{number}.status").read_text()), (scratch / f"{number}.out").read_text(errors="replace"))
        for number in range(len(steps))
    ]


def prepare(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory as the page takes it for granted, with this program and this Python in PATH."""
    programs, directory = tmp_path / "bin", tmp_path / "work"
    programs.mkdir()
    for name, arguments in (("holdfast", "-m holdfast "), ("python", "")):
        script = programs / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments}"$@"\n')
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    if page.name == "README.md":
        shutil.copytree(ROOT / "examples", directory / "examples")
    else:
        directory.mkdir()
        (directory / "train.py").write_text('print("trained")\n')
        monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "2")
    return directory


@pytest.fixture
def has_box(page: Path, isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether ssh reaches `HOST`, as a page that names one takes for granted; its account has two simulated cards."""
    assert isolated_environment
    if HOST not in page.read_text(encoding="utf-8") or why_no_sshd():
        yield False
        return
    with Sshd.started(options="PermitUserEnvironment yes") as box:
        for account, name in (("box", HOST), ("other", OTHER)):
            (box.home(account) / ".ssh").mkdir(mode=0o755)
            (box.home(account) / ".ssh" / "environment").write_text("HOLDFAST_SIMULATED_GPUS=2x24GiB\n")
            box.alias(account, name=name)
        monkeypatch.setenv("HOLDFAST_SSH", str(box.program))
        yield True
        end_masters()


@pytest.fixture
def has_image(page: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that runs jobs in `IMAGE` has a Podman with that image."""
    if IMAGE not in page.read_text(encoding="utf-8"):
        return
    podman = request.getfixturevalue("podman")
    podman("tag", podman.tag, IMAGE)
    for name, value in podman.environ.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("has_image")
@pytest.mark.requirement("DOC-05")
@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow) if page.name in LONG_PAGES else page for page in PAGES],
    ids=lambda page: page.name,
)
def test_the_commands_of_the_documents_do_what_they_show(
    page: Path, has_box: bool, holdfast: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = prepare(page, tmp_path, monkeypatch)
    sessions = [session for session in read_sessions(page) if has_box or not is_elsewhere(session)]
    # A page's blocks belong together: a variable that one exports holds in the next.
    steps = [step for session in sessions for step in session]
    try:
        results = run_session(steps, directory, tmp_path)
    finally:
        for row in holdfast("ls", "--here", "--json", "--state", "live").json()["runs"]:
            holdfast("stop", "--now", str(row["run_id"]))
    for step, following, (code, printed) in zip(steps, [*steps[1:], None], results, strict=True):
        asked = following is not None and following.command.split("#")[0].strip() == "echo $?"
        expected = int(following.shown[0]) if following is not None and asked else 0
        assert code == expected, f"{step.where}: {step.command}\n{printed}"
        found = [find_words(line) for line in printed.splitlines()]
        for shown in step.shown:
            words = find_words(shown)
            assert any(words <= line for line in found), f"{step.where}: not said: {shown}\nbut:\n{printed}"


def test_the_readme_shows_commands_and_one_that_is_refused() -> None:
    steps = [step for session in read_sessions(ROOT / "README.md") for step in session]
    assert sum(step.command.startswith("holdfast ") for step in steps) >= 10
    assert ("echo $?", ("75",)) in [(step.command, step.shown) for step in steps]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("20261120-120334-long-c255 stopped (exit 130)", "20270101-000000-long-0000 stopped (exit 130): by x", True),
        ("20261120-120334-long-c255 stopped (exit 130)", "20270101-000000-long-0000 stopped (exit 137): by x", False),
        ("20261120-120334-long-c255 stopped", "20270101-000000-short-0000 stopped", False),
        ("removed 1 run, 92 KiB", "removed 1 run, 3 MiB", True),
        ("removed 1 run, 92 KiB", "kept 1 run, 92 KiB", False),
    ],
)
def test_a_shown_line_is_compared_by_what_does_not_change(shown: str, printed: str, same: bool) -> None:
    assert (find_words(shown) <= find_words(printed)) is same
