"""``restart --job FILE`` of a run at a place: the job is read at the desk, the code stays the run's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.desk.route.loop import WarmLoop, add_place
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Command

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(180)]
TELL = (
    "import os, sys\nprint(os.path.basename(os.getcwd()), sys.argv[1:], os.environ.get('COLOUR'), os.environ['SET'])\n"
)
JOB = "name: far\ninputs: [data.txt]\ncommand: [python3, tell.py{more}]\n"


@pytest.fixture
def loop(
    no_leaks: None, isolated_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """A place with lines of setup."""
    made = WarmLoop(tmp_path_factory.mktemp("loop"))
    made.add()
    config = Path(isolated_environment["XDG_CONFIG_HOME"], "holdfast/places.toml")
    config.write_text(f'{config.read_text().rstrip()}\nsetup = ["export SET=yes"]\n')
    yield
    made.keep()


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A directory with a job in a directory of it."""
    directory = tmp_path / "code/exp"
    directory.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", tmp_path / "code"], check=True)
    (directory / "tell.py").write_text(TELL)
    (directory / "data.txt").write_text("x")
    (directory / "job.yaml").write_text(JOB.format(more=""))
    return directory


@pytest.mark.usefixtures("loop")
def test_a_job_file_of_the_desk_changes_the_job_of_a_run_elsewhere_and_not_its_code(
    holdfast: Command, code: Path
) -> None:
    assert "exp [] None yes" in holdfast("run", "--on", "loop", "job.yaml", cwd=code, timeout_s=LONG_S).out
    (code / "job.yaml").write_text(JOB.format(more=", a") + "timeout: 1h\n")
    (code / "env").write_text("COLOUR=blue\n")
    words = ("restart", "loop:far", "--job", "job.yaml")
    dry = holdfast(*words, "--env-file", "env", "--dry-run", "--json", cwd=code, timeout_s=LONG_S).json()
    assert [item["key"] for item in dry["changed"]] == ["command", "timeouts.total_s", "env.COLOUR"]
    (code / ".holdfastignore").write_text("*.log\n")
    (code / "results.csv").write_text("what holdfast has exported\n")
    done = holdfast(*words, "-f", "--env-file", "env", "--limit-open-files", "99", cwd=code, timeout_s=LONG_S)
    assert (done.code, "exp ['a'] blue yes" in done.out) == (0, True), done
    assert "changed: limits.open_files none -> 99" in done.err
    os.unlink(code / "env")
    (code / "tell.py").write_text("raise SystemExit('another program')\n")
    other = holdfast(*words, cwd=code, timeout_s=LONG_S)
    assert (other.code, "is not that of" in other.err, "exp/tell.py was changed" in other.err) == (64, True, True), (
        other
    )
    assert "--no-code --job FILE changes the job alone" in other.err
    (code / "job.yaml").write_text("env: {COLOUR: red}\n")
    kept = holdfast(*words, "-f", "--no-code", cwd=code, timeout_s=LONG_S)
    assert (kept.code, "exp ['a'] red yes" in kept.out) == (0, True), kept
    alone = holdfast("restart", "loop:far", "--no-code", timeout_s=LONG_S)
    assert (alone.code, "--no-code is for --job" in alone.err) == (64, True), alone
    shown = holdfast("show", "loop:far", "--json", timeout_s=LONG_S).json()
    assert shown["attempt"] == 3


def test_what_is_wrong_with_it_is_said_before_anything_is_sent(holdfast: Command, code: Path) -> None:
    add_place("far", root="/tmp", host="nowhere.invalid")
    (code / "bad.yaml").write_text("comandx: [true]\n")
    for words, exit_code, said in (
        (("--job", "bad.yaml"), 65, "bad.yaml:1: comandx: unknown key; did you mean command?"),
        (("--job", "none.yaml"), 65, "none.yaml: no such job file"),
        (("--job", "job.yaml"), 69, "nowhere.invalid"),
        (("--job", "job.yaml", "--name", "x"), 64, "a run keeps its name"),
        (("--job", "job.yaml", "--input", "../../out"), 64, "is not in the tree that is sent"),
    ):
        done = holdfast("restart", "far:x", *words, cwd=code, timeout_s=LONG_S)
        assert (done.code, said in done.err) == (exit_code, True), done
