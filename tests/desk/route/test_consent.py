"""Consent over a place: the box says what is to be asked, the desk asks, and a plan that has changed is asked anew."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.view.observe import list_attempts
from tests.cli.clocks import make_clocks, with_clocks
from tests.cli.live import live_run
from tests.cli.test_doctor import marked
from tests.desk.route.loop import WarmLoop
from tests.desk.route.terminal import answer_at_terminal
from tests.rundirs import ended, make_run, own_run_id
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Command

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
RUN = "20261120-100000-digits-0a1b"
OTHER = "20261120-100000-zeros-0a1b"


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> WarmLoop:
    """One root for all: the bundle is pushed once."""
    return WarmLoop(tmp_path_factory.mktemp("loop"))


@pytest.fixture(autouse=True)
def loop(warm: WarmLoop, no_leaks: None, isolated_environment: dict[str, str]) -> Iterator[WarmLoop]:
    """Make a directory of this machine a place; this desk's own runs lie elsewhere."""
    warm.add()
    yield warm
    warm.keep()


def order_as(run_dir: str, author: str) -> None:
    """Have the record say who ordered the run."""
    path = Path(run_dir, "run.json")
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "ordered_by": author}))


@pytest.mark.slow
def test_what_is_to_be_removed_there_is_asked_for_here_and_shown_once(
    warm: WarmLoop, holdfast: Command, tmp_path: Path
) -> None:
    run_dir = make_run(str(warm.root), RUN, ended())
    alone = holdfast("rm", "loop:digits")
    assert (alone.code, os.path.exists(run_dir)) == (64, True)
    assert "nothing was removed: there is no terminal to ask on" in alone.err
    assert "holdfast rm --yes loop:digits" in alone.err
    for_programs = json.loads(holdfast("rm", "loop:digits", "--json").out)
    assert for_programs["error"]["message"] == "nothing was removed: with --json nobody is asked"
    assert "holdfast rm --yes loop:digits --json" in for_programs["error"]["hint"]
    code, text = answer_at_terminal("rm", "loop:digits", cwd=tmp_path, answers=["n"])
    assert (code, "nothing was done" in text, os.path.exists(run_dir)) == (64, True, True), text
    code, text = answer_at_terminal("rm", "loop:digits", cwd=tmp_path, answers=["y"])
    assert (code, os.path.exists(run_dir)) == (0, False), text
    assert text.count("Remove this run with artifacts and checkpoints?") == 1
    assert text.count(RUN) == 1
    assert "removed 1 run" in text
    make_run(str(warm.root), RUN, ended())
    assert holdfast("rm", "--on", "loop", "--yes", "digits").code == 0


@pytest.mark.slow
def test_a_plan_that_changed_while_it_was_asked_for_is_asked_for_anew(warm: WarmLoop, tmp_path: Path) -> None:
    run_dir = make_run(str(warm.root), RUN, ended())

    def add(number: int) -> None:
        if number == 0:
            with open(f"{run_dir}/artifacts/late", "wb") as file:
                file.write(b"x" * (1 << 20))

    code, text = answer_at_terminal("rm", "loop:digits", cwd=tmp_path, answers=["y", "y"], before=add)
    assert (code, os.path.exists(run_dir)) == (0, False), text
    assert text.count("Remove this run") == 2


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["queue", "patrol"])
def test_each_verb_of_a_clock_asks_through_a_place(
    holdfast: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    clocks = make_clocks(tmp_path / "clocks")
    monkeypatch.setenv("PATH", str(with_clocks(clocks, "crontab")["PATH"]))
    table = clocks / "table"

    def is_there() -> bool:
        return table.exists() and f"holdfast {verb}: begin" in table.read_text()

    for act, options, question in (("install", ["--cron"], "entry?"), ("uninstall", [], "entry from there?")):
        words, before = (verb, act, *options, "--on", "loop"), is_there()
        assert before is (act == "uninstall")
        refused = holdfast(*words)
        assert refused.code == 64, refused
        assert f"holdfast {' '.join([verb, act, '--on', 'loop', '--yes', *options])}" in refused.err, refused
        code, text = answer_at_terminal(*words, cwd=tmp_path, answers=["n"])
        assert (code, question in text, "nothing was done" in text, is_there()) == (64, True, True, before), text
        code, text = answer_at_terminal(*words, cwd=tmp_path, answers=["y"])
        assert (code, is_there()) == (0, not before), text


@pytest.mark.slow
def test_the_reaper_asks_through_a_place(warm: WarmLoop, holdfast: Command, tmp_path: Path) -> None:
    run_dir = make_run(str(warm.root), own_run_id(), ended())
    words = ("doctor", "--reap", "--runs", str(warm.root), "--on", "loop")
    with marked(run_dir) as left:
        refused = holdfast(*words)
        assert (refused.code, "holdfast doctor --on loop --yes --reap" in refused.err) == (64, True), refused
        code, text = answer_at_terminal(*words, cwd=tmp_path, answers=["n"])
        assert (code, "End this process?" in text, "nothing was done" in text) == (64, True, True), text
        assert left.poll() is None
        code, text = answer_at_terminal(*words, cwd=tmp_path, answers=["y"])
        assert (code, left.wait(LIMIT_S)) == (0, -signal.SIGTERM), text
    shutil.rmtree(run_dir)


@pytest.mark.slow
def test_a_restart_over_results_is_asked_at_the_desk(warm: WarmLoop, holdfast: Command, tmp_path: Path) -> None:
    job = ("sh", "-c", 'echo 1 >> "$HOLDFAST_ARTIFACT_DIR/score"')
    begun = holdfast("run", "--name", "scored", "--", *job, env={"HOLDFAST_RUNS": str(warm.root)})
    assert begun.code == 0, begun
    (run_dir,) = warm.root.glob("*-scored-*")
    for options in ((), ("-f",)):
        refused = holdfast("restart", "loop:scored", *options)
        assert (refused.code, "nothing was started" in refused.err) == (64, True), refused
        assert f"holdfast restart --yes loop:scored{' -f' if options else ''}" in refused.err, refused
    code, text = answer_at_terminal("restart", "loop:scored", cwd=tmp_path, answers=["n"])
    assert (code, "nothing was done" in text, list_attempts(str(run_dir))) == (64, True, (1,)), text
    code, text = answer_at_terminal("restart", "loop:scored", cwd=tmp_path, answers=["y"])
    assert (code, list_attempts(str(run_dir))) == (0, (1, 2)), text
    wait_until((run_dir / "attempts/2/exit.json").exists, what="the end of the attempt")
    again = holdfast("restart", "--yes", "-f", "loop:scored")
    assert (again.code, (run_dir / "artifacts/score").read_text()) == (0, "1\n1\n1\n"), again
    assert holdfast("rm", "--yes", "loop:scored").code == 0


@pytest.mark.slow
def test_scratch_and_jobs_in_line_go_with_a_yes_at_the_desk(
    warm: WarmLoop, holdfast: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = Path(make_run(str(warm.root), OTHER, ended()))
    record = json.loads((run_dir / "run.json").read_text())
    record["job"].update(workdir=str(tmp_path), disk={"scratch": ["artifacts/tmp/**"]})
    (run_dir / "run.json").write_text(json.dumps(record))
    (run_dir / "artifacts/tmp").mkdir()
    (run_dir / "artifacts/tmp/a").write_bytes(b"x")
    shown = holdfast("prune", "loop:zeros")
    assert (shown.code, "artifacts/tmp/a" in shown.out, (run_dir / "artifacts/tmp/a").exists()) == (0, True, True), (
        shown
    )
    code, text = answer_at_terminal("prune", "loop:zeros", cwd=tmp_path, answers=["y"])
    assert (code, (run_dir / "artifacts/tmp/a").exists(), text.count("SIZE")) == (0, False, 1), text
    assert holdfast("rm", "--yes", "loop:zeros").code == 0
    monkeypatch.setenv("HOLDFAST_RUNS", str(warm.root))
    (tmp_path / "train.sh").write_text("exit 0\n")
    began = holdfast("sweep", "--name", "s", "--paused", "--grid", "lr=1,2", "--", "sh", "train.sh")
    assert began.code == 0, began
    refused = holdfast("queue", "cancel", "s/", "--on", "loop")
    assert (refused.code, "holdfast queue cancel --on loop --yes s/" in refused.err) == (64, True), refused
    code, text = answer_at_terminal("queue", "cancel", "s/", "--on", "loop", cwd=tmp_path, answers=["y"])
    assert (code, "Cancel 2 jobs" in text) == (0, True), text


@pytest.mark.slow
def test_the_run_of_another_person_is_stopped_only_when_that_is_meant(
    warm: WarmLoop, holdfast: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_RUNS", str(warm.root))
    with live_run(holdfast) as run:
        order_as(run.run_dir, "bea@elsewhere")
        refused = holdfast("stop", f"loop:{run.run_id}")
        assert (refused.code, "was ordered by bea@elsewhere, and was not stopped" in refused.err) == (64, True), refused
        assert f"holdfast stop --yes loop:{run.run_id}" in refused.err
        here = holdfast("stop", run.run_id)
        assert (here.code, "bea@elsewhere" in here.err) == (64, True), here
        code, text = answer_at_terminal("stop", f"loop:{run.run_id}", cwd=tmp_path, answers=["n"])
        assert (code, "was ordered by bea@elsewhere. Stop it?" in text) == (64, True), text
        assert run.look().condition == "running"
        assert "bea@elsewhere (as " in holdfast("show", run.run_id).out
        assert holdfast("stop", "--yes", f"loop:{run.run_id}").code == 0
    run_dir = make_run(str(warm.root), OTHER, ended())
    order_as(str(run_dir), "bea@elsewhere")
    code, text = answer_at_terminal("rm", "loop:zeros", cwd=tmp_path, answers=["y"])
    assert (code, "Remove this run, ordered by bea@elsewhere, with" in text) == (0, True), text


@pytest.mark.slow
def test_ones_own_run_is_stopped_without_a_question(holdfast: Command) -> None:
    began = holdfast("run", "--on", "loop", "--no-code", "--name", "mine", "-d", "--prove", "0", "--", "sleep", "60")
    assert began.code == 0, began
    stopped = holdfast("stop", "--now", "loop:mine")
    assert stopped.code == 0, stopped
