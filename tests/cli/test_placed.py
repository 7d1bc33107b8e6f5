"""``ls``, ``wait`` and ``reconcile`` of a desk with places: what a person sees, through real boxes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.desk.orders.journal import OrderKind, Step, claim_order, list_orders, note_step, read_journal
from holdfast.desk.runs import registry
from holdfast.host.process.processes import identify_self
from holdfast.model.run import Outcome
from tests.cli.conftest import ENTRY
from tests.rundirs import ended, make_run, running
from tests.waiting import LIMIT_S, LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Command
    from tests.sshd import Sshd

pytestmark = [pytest.mark.cli, pytest.mark.timeout(180)]
"""The bundle is pushed by the first command, on a machine that may be busy."""


def run_id(number: int, name: str = "digits") -> str:
    return f"20261120-1000{number:02d}-{name}-0a1b"


def list_fresh(holdfast: Command) -> dict[str, Any]:
    """What a list says, when each run that was sent is seen by it: places have 2.5 s, little on a busy machine."""
    found: dict[str, Any] = holdfast("ls", "--json", timeout_s=LONG_S).json()
    return found if all(run["fresh"] or run["condition"] == "not sent" for run in found["runs"]) else {}


@pytest.mark.slow
def test_names_and_times_are_compared_at_the_desk(
    places: Callable[..., Path], holdfast: Command, isolated_environment: dict[str, str]
) -> None:
    top = places()
    make_run(str(top / "gpu1"), run_id(1), ended())
    make_run(str(top / "gpu1"), run_id(3, "eval"), ended())
    make_run(isolated_environment["HOLDFAST_RUNS"], run_id(2), ended())

    def listed(*words: str) -> list[str]:
        return [
            f"{run['place']}:{run['run_id']}"
            for run in holdfast("ls", "--json", *words, timeout_s=LONG_S).json()["runs"]
        ]

    assert listed("digits") == [f"local:{run_id(2)}", f"gpu1:{run_id(1)}"]
    assert listed("--on", "gpu1", "*a*") == [f"gpu1:{run_id(3, 'eval')}"]
    assert listed("--since", "2026-11-19", "digits", "-n", "1") == [f"local:{run_id(2)}"]
    assert listed("--since", "1d") == []
    for word, said in (
        ("evals", "did you mean eval?"),
        ("gpu1", "holdfast ls --on gpu1"),
        ("q", "ls --all asks every"),
    ):
        done = holdfast("ls", word, timeout_s=LONG_S)
        assert (done.code, f"of 3 runs none is called '{word}'" in done.err, said in done.err) == (66, True, True), done


START = r"(\d{4}-\d\d-\d\d )?\d\d:\d\d"


@pytest.mark.slow
@pytest.mark.requirement("MON-19")
def test_MON_19_one_list_of_all_places_with_the_age_of_what_could_not_be_seen(
    places: Callable[..., Path], holdfast: Command, isolated_environment: dict[str, str], black_hole: str
) -> None:
    top = places(gpu7=black_hole)
    make_run(str(top / "gpu1"), run_id(1), running(), supervisor=identify_self())
    make_run(isolated_environment["HOLDFAST_RUNS"], run_id(2), ended())
    assert (
        holdfast("ls", "--on", "gpu1", timeout_s=LONG_S).out.splitlines()[1].startswith(f"gpu1   {run_id(1)}  running")
    )
    found = holdfast("ls", timeout_s=LONG_S)
    assert re.sub(r"\d+\.?\d* (s|min)|\d+m\d+s", "T", re.sub(START, "B", re.sub(" +", " ", found.out))) == (
        "PLACE RUN STATE START TIME CARDS STEP LOSS EXIT\n"
        f"local {run_id(2)} succeeded B T - - - 0\n"
        f"gpu1 {run_id(1)} running B T - - - -\n"
    )
    assert "gpu7 does not answer (" in found.err
    assert "it has never answered" in found.err
    again = wait_until(lambda: list_fresh(holdfast), what="each place that can answer does so in time")
    assert [(run["place"], run["fresh"], run["reach"]) for run in again["runs"]] == [
        ("local", True, "here"),
        ("gpu1", True, "here"),
    ]
    assert [(place["place"], place["reach"], place["asked"]) for place in again["places"]] == [
        ("gpu1", "here", True),
        ("gpu7", "unreachable", False),
    ]
    assert "gpu7" not in holdfast("ls", "--here").err
    assert holdfast("ls", "--here", "--json").json().keys() == {"schema", "runs", "total", "known", "notice"}
    assert registry.find("digits")[0].place == "gpu1"


@pytest.mark.slow
def test_what_a_list_does_not_show_is_counted_here_and_at_places(
    places: Callable[..., Path], holdfast: Command, isolated_environment: dict[str, str]
) -> None:
    top = places()
    for number in range(4):
        make_run(str(top / "gpu1"), run_id(number), ended())
        make_run(isolated_environment["HOLDFAST_RUNS"], run_id(number + 10), ended())
    holdfast("reconcile", "gpu1", timeout_s=LONG_S)
    for shown in (1, 3, 6, 8, 9):
        found = holdfast("ls", "-n", str(shown), "--json").json()
        assert (len(found["runs"]), found["total"], found["known"]) == (min(8, shown), 8, 8)
        hidden = f"{8 - shown} older runs are not shown; --all shows them"
        assert (hidden in holdfast("ls", "-n", str(shown)).err) is (shown < 8)
    found = holdfast("ls", "--on", "gpu1", "-n", "1", "--json", timeout_s=LONG_S).json()
    assert (len(found["runs"]), found["total"], found["known"]) == (1, 4, 4)


@pytest.mark.slow
def test_a_named_place_that_does_not_answer_is_no_empty_list(
    places: Callable[..., Path], holdfast: Command, black_hole: str
) -> None:
    places(gpu7="nowhere.invalid")
    done = holdfast("ls", "--on", "gpu7", timeout_s=LONG_S)
    assert (done.code, done.out) == (69, "")
    assert "gpu7 does not answer (" in done.err


@pytest.mark.slow
def test_a_desk_without_places_prints_what_it_always_did(
    holdfast: Command, isolated_environment: dict[str, str]
) -> None:
    make_run(isolated_environment["HOLDFAST_RUNS"], run_id(2), ended())
    before = holdfast("ls")
    assert before.out == holdfast("ls", "--here").out
    assert "PLACE" not in before.out
    assert "place" not in holdfast("ls", "--json").json()["runs"][0]


@pytest.mark.slow
def test_waiting_at_several_places(
    places: Callable[..., Path], holdfast: Command, isolated_environment: dict[str, str]
) -> None:
    top = places()
    make_run(str(top / "gpu1"), run_id(1), ended())
    make_run(isolated_environment["HOLDFAST_RUNS"], run_id(2), ended())
    both = holdfast("wait", f"gpu1:{run_id(1)}", run_id(2), timeout_s=LONG_S)
    assert both.code == 0
    assert f"holdfast: gpu1:{run_id(1)} succeeded (exit 0)" in both.err
    assert f"holdfast: {run_id(2)} succeeded (exit 0)" in both.err
    answer = holdfast("wait", "--json", f"gpu1:{run_id(1)}", f"local:{run_id(2)}", timeout_s=LONG_S).json()
    assert [(place["place"], place["answer"]["runs"][0]["run_id"]) for place in answer["places"]] == [
        ("local", run_id(2)),
        ("gpu1", run_id(1)),
    ]
    missing = holdfast("wait", "gpu1:nothing", timeout_s=LONG_S)
    assert missing.code == 66
    assert "nothing" in missing.err


def test_the_exit_code_of_a_run_that_was_stopped_passes_through_a_wait_at_its_place(
    places: Callable[..., Path], holdfast: Command
) -> None:
    """It is one of a signal's, as that of a waiting command that was killed there: which the run's end is not."""
    top = places()
    make_run(str(top / "gpu1"), run_id(1), ended(Outcome.STOPPED, 143))
    for flags in ([], ["-q"], ["--json"]):
        found = holdfast("wait", *flags, f"gpu1:{run_id(1)}", timeout_s=LONG_S)
        assert (found.code, "what waited there was ended" in found.err) == (143, False), flags
        assert "\0" not in found.out, flags


@pytest.mark.slow
def test_a_second_desk_knows_what_the_place_knows(
    places: Callable[..., Path], holdfast: Command, tmp_path: Path
) -> None:
    top = places()
    make_run(str(top / "gpu1"), run_id(1), running(), supervisor=identify_self())
    with claim_order("gpu1", "digits", "a" * 64, "", run_id=run_id(1)):
        note_step("gpu1", Step.SENT, run_id(1))
    with claim_order("gpu1", "eval", "b" * 64, "", run_id=run_id(9, "eval")):
        pass
    assert {known.run_id for known in registry.find("eval")} == {run_id(9, "eval")}
    done = holdfast("reconcile", "gpu1", timeout_s=LONG_S)
    assert done.code == 0
    assert f"{run_id(1)}, ordered at " in done.out
    assert "it is there: running" in done.out
    assert "it is not there; the same command submits it" in done.out
    assert "1 run of gpu1 known, 1 of them not ended" in done.err
    orders = list_orders(read_journal("gpu1"))
    assert [orders[each].step for each in (run_id(1), run_id(9, "eval"))] == [Step.TAKEN, Step.INTENT]
    shown = wait_until(lambda: list_fresh(holdfast), what="the place answers in time")["runs"]
    assert [(run["run_id"], run["condition"], run["fresh"]) for run in shown] == [
        (run_id(9, "eval"), "not sent", False),
        (run_id(1), "running", True),
    ]
    assert holdfast("reconcile", "gpu1", "--dry-run").code == 64
    shown = holdfast("show", f"gpu1:{run_id(9, 'eval')}")
    assert (shown.code, f"gpu1:{run_id(9, 'eval')} was ordered and never sent: it is no run" in shown.err) == (66, True)
    assert holdfast("rm", f"gpu1:{run_id(9, 'eval')}", "--lr").code == 66
    assert list_orders(read_journal("gpu1"))[run_id(9, "eval")].step is Step.INTENT
    assert holdfast("rm", "--yes", f"gpu1:{run_id(9, 'eval')}").err.startswith("holdfast: dropped gpu1:")
    assert list_orders(read_journal("gpu1"))[run_id(9, "eval")].step is Step.REFUSED
    (tmp_path / "other").mkdir(mode=0o700)
    env = {"XDG_STATE_HOME": str(tmp_path / "other")}
    assert holdfast("reconcile", "gpu1", env=env, timeout_s=LONG_S).code == 0
    assert run_id(1) in holdfast("ls", env=env, timeout_s=LONG_S).out


@pytest.mark.slow
def test_reconcile_of_a_place_that_does_not_answer_changes_nothing(
    places: Callable[..., Path], holdfast: Command, black_hole: str
) -> None:
    places(gpu7="nowhere.invalid")
    registry.record_taken("gpu7", run_id(1))
    assert holdfast("reconcile", "gpu7", timeout_s=LONG_S).code == 69
    assert registry.find("digits")


@pytest.mark.slow
@pytest.mark.requirement("XPORT-09")
@pytest.mark.requirement("BSSH-04")
def test_BSSH_04_a_wait_goes_on_over_a_link_that_was_cut(
    ssh_desk: Sshd, places: Callable[..., Path], holdfast: Command
) -> None:
    places(box="box")
    begun = holdfast(
        *("run", "-d", "--no-code", "--on", "box", "--name", "waited", "--", "sh", "-c"),
        "while ! test -e ~/enough; do sleep 0.2; done; exit 3",
        timeout_s=LONG_S,
    )
    assert begun.code == 0, begun
    enough = ssh_desk.home("box") / "enough"
    waiter = subprocess.Popen([*ENTRY, "wait", "box:waited"], stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: any(words[0] == "wait" for words in ssh_desk.calls("box")), what="it waits there")
        ssh_desk.cut()
        assert waiter.stderr is not None
        assert "what is waited for goes on, and so does the wait" in waiter.stderr.readline()
        enough.touch()
        os.chown(enough, ssh_desk.users["box"], -1)
        assert waiter.wait(LIMIT_S) == 3
    finally:
        enough.touch()
        waiter.send_signal(signal.SIGKILL)
        waiter.wait()
        assert waiter.stderr is not None
        waiter.stderr.close()
        enough.unlink()


@pytest.mark.slow
def test_a_broken_places_toml_hides_no_run_of_this_machine(
    holdfast: Command, places: Callable[..., Path], isolated_environment: dict[str, str]
) -> None:
    places()
    make_run(isolated_environment["HOLDFAST_RUNS"], run_id(1), ended())
    (Path(isolated_environment["XDG_CONFIG_HOME"]) / "holdfast" / "places.toml").write_text('[bad]\nhots = "x"\n')
    done = holdfast("ls")
    assert (done.code, run_id(1) in done.out, "places.toml:2: bad.hots" in done.err) == (0, True, True), done.err
    told = holdfast("ls", "--json").json()
    assert ([each["run_id"] for each in told["runs"]], "bad.hots" in told["notice"]) == ([run_id(1)], True)
    assert holdfast("ls", "--on", "bad").code == 64


@pytest.mark.slow
def test_what_is_known_of_orders_and_of_a_damaged_file_is_said(
    places: Callable[..., Path], holdfast: Command, isolated_environment: dict[str, str]
) -> None:
    places(gpu7="nowhere.invalid")
    with claim_order("gpu7", "early", "a" * 64, "", run_id=run_id(1, "early")):
        assert _conditions(holdfast) == {run_id(1, "early"): "being sent"}
    with claim_order("gpu7", "late", "b" * 64, "", run_id=run_id(2, "late")):
        note_step("gpu7", Step.SENT, run_id(2, "late"))
    with claim_order("gpu7", "full", "c" * 64, "", run_id=run_id(4, "full")):
        note_step("gpu7", Step.SENT, run_id(4, "full"))
        note_step("gpu7", Step.SENT, run_id(4, "full"), message="no space left on /data")
    registry.record_taken("gpu7", run_id(3))
    seen = Path(isolated_environment["XDG_STATE_HOME"]) / "holdfast" / "places" / "gpu7" / registry.RUNS
    with seen.open("a") as file:
        file.write("torn\n")
    done = holdfast("ls")
    assert (done.code, run_id(3) in done.out) == (0, True)
    assert f"{seen}: 1 of 2 lines are damaged); holdfast reconcile gpu7 makes it again" in done.err
    assert _conditions(holdfast) == {
        run_id(1, "early"): "not sent",
        run_id(2, "late"): "submitted, no answer yet",
        run_id(3): "created",
        run_id(4, "full"): "refused",
    }
    assert f"gpu7:{run_id(4, 'full')} was refused there and is no run: no space left on /data" in done.err


def _conditions(holdfast: Command) -> dict[str, str]:
    return {run["run_id"]: run["condition"] for run in holdfast("ls", "--json", timeout_s=LONG_S).json()["runs"]}


@pytest.mark.slow
def test_what_a_desk_removed_or_followed_to_its_end_its_list_knows(
    places: Callable[..., Path], holdfast: Command
) -> None:
    top = places()
    done = holdfast("run", "--on", "gpu1", "--no-code", "--name", "brief", "--", "sh", "-c", "exit 3", timeout_s=LONG_S)
    assert done.code == 3, done
    (seen,) = registry.read_sightings("gpu1")
    assert (seen.ended, seen.condition, seen.exit_code, seen.by) == (True, "failed", 3, "agent")
    handbook = holdfast("handbook", "gpu1:brief", timeout_s=LONG_S)
    assert f"    holdfast stop gpu1:{seen.run_id} " in handbook.out
    assert "alias" not in handbook.out
    assert "--on gpu1 /" not in handbook.out
    assert "## Without holdfast, logged in to gpu1" in handbook.out
    make_run(str(top / "gpu1"), run_id(1), ended())
    assert holdfast("rm", "--yes", "gpu1:brief", timeout_s=LONG_S).code == 0
    assert [seen.run_id for seen in registry.read_sightings("gpu1")] == [run_id(1)]


@pytest.mark.slow
def test_what_a_desk_awaited_or_stopped_its_list_knows_and_so_it_does_a_queued_run(
    places: Callable[..., Path], holdfast: Command
) -> None:
    top = places()
    for number, words in enumerate((["wait"], ["stop"], ["prune", "--yes"])):
        registry.record_taken("gpu1", run_id(number))
        make_run(str(top / "gpu1"), run_id(number), ended())

        def has_seen(words: list[str] = words, name: str = run_id(number)) -> bool:
            assert holdfast(*words, f"gpu1:{name}", timeout_s=LONG_S).code == 0
            (seen,) = [seen for seen in registry.read_sightings("gpu1") if seen.run_id == name]
            return (seen.ended, seen.condition) == (True, "succeeded")

        # The look that follows has 2.5 s, which a busy machine may not keep: then the next one does it.
        wait_until(has_seen, what=f"it is known after {words[0]}")
    with claim_order("gpu1", "night", "a" * 64, "", run_id=run_id(8, "night"), what=OrderKind.JOBS):
        note_step("gpu1", Step.SENT, run_id(8, "night"))
        note_step("gpu1", Step.TAKEN, run_id(8, "night"))
    make_run(str(top / "gpu1"), run_id(9, "queued"), ended())
    assert holdfast("show", "queued", timeout_s=LONG_S).out.startswith(f"gpu1:{run_id(9, 'queued')}")
    unknown = holdfast("show", "nothing-of-that-name", timeout_s=LONG_S)
    assert unknown.err.startswith("holdfast: no run answers to 'nothing-of-that-name'"), unknown.err
    assert (unknown.code, "in the queue of a place, write gpu1:nothing-of-that-name" in unknown.err) == (66, True)
    assert "queue of a place" not in holdfast("logs", "-f", "--since", "1h", timeout_s=LONG_S).err
    removed = holdfast("place", "rm", "gpu1", timeout_s=LONG_S)
    assert (removed.code, "what waits there goes on" in removed.err) == (0, True), removed.err
