"""``holdfast diagnose``: ended and live runs, processes, the archive, and its exit codes."""

from __future__ import annotations

import json
import os
import pwd
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.view import observe
from holdfast.agent.view.page import diagnosis
from holdfast.diagnosis.bundle import BUDGET_BYTES, MOST_BYTES, write_bundle
from holdfast.host.clock import utc_now
from holdfast.model import wire
from holdfast.model.run import Created, Preflight
from holdfast.model.verdict import LiveClass
from tests.cli.live import live_run
from tests.each import each
from tests.rundirs import make_run, write

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli

SECRET = "abc123secretvalue"
BODY = "print('HF_TO' + 'KEN=' + 'abc123' + 'secretvalue', flush=True); {}['lr']"
"""Prints the secret, which a command that holds it whole would be refused for."""
FAILING = (sys.executable, "-I", "-S", "-c", BODY)


@pytest.mark.slow
@pytest.mark.requirement("DIAG-02", "FAIL-06")
def test_DIAG_02_an_ended_run_gets_class_evidence_and_one_action(holdfast: Command) -> None:
    run_dir = holdfast("run", "--json", "--name", "digits", "--", *FAILING).json()["run_dir"]
    done = holdfast("diagnose", "digits")
    assert done.code == 0
    assert "attempt 1: bug (likely)" in done.out
    for words in (
        "KeyError: 'lr'",
        "do ",
        "tried again by itself  no, somebody",
        "not out_of_memory: ",
        "evidence for it",
    ):
        assert words in done.out, words
    value = holdfast("diagnose", "--json", run_dir).json()
    assert (value["live"], value["attempt"], value["condition"]) == (False, 1, "failed")
    assert (value["verdict"]["kind"], value["verdict"]["detector"]) == ("bug", "V12")
    assert {"detector": "V9", "kind": "killed", "answer": "not_applicable", "confidence": "possible"} in value["ladder"]
    assert SECRET not in done.out


@pytest.mark.slow
def test_why_no_attempt_followed_by_itself_is_said_alike_at_the_end_and_later(holdfast: Command) -> None:
    full = "echo 'OSError: [Errno 28] No space left on device: x'; exit 1"
    ended = holdfast("run", "--name", "full", "--", "sh", "-c", full)
    why = "no, its output speaks of a full disk, and no disk of the run was measured full: nothing is removed for that"
    assert f"tried again by itself: {why}" in ended.err
    done = holdfast("diagnose", "full")
    assert f"tried again by itself  {why}" in done.out
    assert "after_scratch" not in done.out
    value = holdfast("diagnose", "--json", "full").json()
    assert (value["verdict"]["retry"], value["not_again"]) == ("after_scratch", why.removeprefix("no, "))


TRAINING = """
import sys, time
from holdfast import training
with training.run(sys.argv[1]) as run:
    run.track(x=1)
    for step in run.steps(100000):
        print("ready", flush=True)
        time.sleep(0.01)
"""


@pytest.mark.slow
def test_a_second_run_in_the_same_directory_fails_at_once_and_neither_is_a_bug(
    holdfast: Command, tmp_path: Path
) -> None:
    job = (sys.executable, "-c", TRAINING, str(tmp_path / "out"))
    with live_run(holdfast, job=job) as first:
        first.wait_output("ready")
        second = holdfast("run", "--name", "second", "--", *job)
        assert (second.code, "waiting for" in second.err) == (1, False)
        assert f"out is written by run {first.run_id} on " in second.err
        found = holdfast("diagnose", "--json", "second").json()["verdict"]
        assert (found["kind"], found["also"]) == ("environment", [])
        assert "give this one a directory of its own" in found["action"]
        assert holdfast("stop", first.run_id).code == 0
        stopped = holdfast("diagnose", "--json", first.run_id).json()["verdict"]
        assert (stopped["kind"], stopped["confidence"], stopped["also"]) == ("stopped", "certain", [])


@pytest.mark.slow
def test_a_success_is_said_to_be_one(holdfast: Command) -> None:
    run_dir = holdfast("run", "--json", "--", "true").json()["run_dir"]
    done = holdfast("diagnose", run_dir)
    assert (done.code, done.out.rstrip().rpartition(": ")[2]) == (0, "succeeded; nothing speaks against it")
    assert holdfast("diagnose", "--json", run_dir).json()["verdict"] is None


@pytest.mark.slow
@pytest.mark.requirement("DIAG-03")
def test_a_run_whose_directory_does_not_answer_gets_a_verdict_that_says_so(
    holdfast: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_dir = holdfast("run", "--json", "--", "true").json()["run_dir"]
    silent = tmp_path / "nobody-writes"
    os.mkfifo(silent)
    monkeypatch.setattr(observe, "observe_run", lambda _: silent.read_bytes())
    monkeypatch.setattr(diagnosis, "ANSWERS_WITHIN_S", 0.2)
    silence = diagnosis.find_silence(run_dir)
    assert silence is not None
    assert silence.verdict is not None
    assert silence.verdict.kind is LiveClass.UNCLEAR
    assert "no answer within 0.2 s" in silence.verdict.unknown[0].text


@pytest.mark.slow
@pytest.mark.requirement("FAIL-09")
def test_every_attempt_can_be_asked_for_and_the_list_shows_the_class(holdfast: Command) -> None:
    run_dir = holdfast("run", "--json", "--name", "two", "--", "sh", "-c", "kill -9 $$").json()["run_dir"]
    assert holdfast("diagnose", "--attempt", "1", "two").out.startswith(
        f"{os.path.basename(run_dir)}, attempt 1: killed"
    )
    done = holdfast("diagnose", "--attempt", "7", "two")
    assert (done.code, "has no attempt 7" in done.err) == (66, True)
    assert "failed: killed" in holdfast("ls").out
    rows = holdfast("ls", "--json").json()["runs"]
    assert [row["failure"] for row in rows] == ["killed"]


@pytest.mark.slow
def test_a_run_that_nothing_runs_of_yet_and_one_whose_state_is_damaged(
    holdfast: Command, isolated_environment: dict[str, str]
) -> None:
    root = isolated_environment["HOLDFAST_RUNS"]
    run_dir = make_run(root, "20261120-104501-new-0a1b", Created(), created_at=utc_now())
    value = holdfast("diagnose", "--json", run_dir).json()
    assert (value["live"], value["verdict"]["kind"]) == (False, "starting")
    write(f"{run_dir}/attempts/1/{wire.STATE}", "torn")
    value = holdfast("diagnose", "--json", run_dir).json()
    assert value["verdict"]["kind"] == "unclear"
    assert wire.STATE in value["verdict"]["unknown"][0]["text"]


@each(("created_at", "told"), [("garbage", False), ("", False), ("9999-12-31T23:59:59.000Z", True)])
def test_a_pause_of_an_attempt_whose_beginning_is_no_time_is_not_told(
    tmp_path: Path, created_at: str, told: bool
) -> None:
    root = tmp_path / (created_at or "empty")
    run_dir = make_run(root, state=Created())
    make_run(root, state=Preflight(utc_now()), attempt=2, created_at=created_at)
    write(f"{wire.attempt_dir(run_dir, 1)}/{wire.RETRY}", '{"retry": true, "wait_s": 600, "class": "transient"}')
    report = diagnosis.diagnose_run(run_dir, 2, deep=False, tell=lambda _: None)
    assert report.verdict is not None
    assert report.cause.startswith("it pauses until ") is told


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((), 64),
        (("digits", "--pid", "1"), 64),
        (("--pid", "1", "--bundle", "x.tar.gz"), 64),
        (("--pid", "4194303"), 66),
        (("no-such-run",), 66),
    ],
)
def test_wrong_use_and_what_is_not_there(holdfast: Command, arguments: tuple[str, ...], code: int) -> None:
    done = holdfast("diagnose", *arguments)
    assert done.code == code
    assert done.err.startswith("holdfast: ")


@pytest.mark.slow
@pytest.mark.requirement("DIAG-08", "OBS-04")
def test_DIAG_08_the_archive_holds_the_records_without_secrets_and_is_never_written_over(
    holdfast: Command, tmp_path: Path
) -> None:
    secret = {"WANDB_API_KEY": SECRET}
    run_dir = holdfast("run", "--json", "--", *FAILING, env=secret).json()["run_dir"]
    path = tmp_path / "why.tar.gz"
    made = holdfast("diagnose", "--json", "--bundle", str(path), run_dir).json()["bundle"]
    assert made["path"] == str(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size == made["size_bytes"] < MOST_BYTES
    top = f"{os.path.basename(run_dir)}.1"
    with tarfile.open(path) as archive:
        texts = {member.name: archive.extractfile(member).read().decode() for member in archive.getmembers()}  # type: ignore[union-attr]
    for name in ("diagnosis.json", "run.json", wire.VERDICT, wire.FAILURE, wire.OUTPUT, wire.EVENTS, "left-out.txt"):
        assert f"{top}/{name}" in texts, name
    assert not any(SECRET in text for text in texts.values())
    again = holdfast("diagnose", "--bundle", str(path), run_dir)
    assert (again.code, "exists already" in again.err) == (74, True)


@pytest.mark.requirement("OBS-19")
def test_OBS_19_an_archive_to_share_names_neither_the_box_nor_its_people(tmp_path: Path) -> None:
    home, host, account = os.path.expanduser("~"), os.uname().nodename, pwd.getpwuid(os.geteuid()).pw_name
    run = tmp_path / "20261120-104500-t-0a1b"
    attempt = run / "attempts" / "1"
    attempt.mkdir(parents=True)
    told = {"host": host, "user": account, "ordered_by": "ferdinand@desk7.lab"}
    (run / wire.RUN).write_bytes(wire.to_bytes(told))
    said = f"open {home}/data: no; {account}@{host}: by ferdinand at desk7.lab (desk7); uprooted {account}s\n"
    (attempt / wire.OUTPUT).write_text(said)
    made = write_bundle(str(tmp_path / "b.tar.gz"), str(run), 1, {"box": {"host": host}, "at": f"{home}/x"}, share=True)
    with tarfile.open(made.path) as archive:
        texts = {os.path.basename(m.name): archive.extractfile(m).read().decode() for m in archive.getmembers()}  # type: ignore[union-attr]
    assert texts[wire.OUTPUT] == f"open HOME/data: no; USER@HOST: by USER at HOST (HOST); uprooted {account}s\n"
    whole = "\n".join(texts.values())
    assert not [name for name in (home, host, "ferdinand", "desk7") if name in whole]
    if os.geteuid() == 0:
        # In a container a number may have no account.
        os.chown(run, 54321, 54321)
        write_bundle(str(tmp_path / "c.tar.gz"), str(run), 1, {}, share=True)


@pytest.mark.slow
@pytest.mark.requirement("DIAG-08")
def test_DIAG_08_output_that_does_not_compress_keeps_the_archive_small(tmp_path: Path) -> None:
    attempt = tmp_path / "20261120-104500-t-0a1b" / "attempts" / "1"
    attempt.mkdir(parents=True)
    for name in (wire.OUTPUT, wire.EVENTS, wire.HEALTH, wire.SUPERVISOR_LOG, "first_error.txt", wire.STATE, wire.EXIT):
        (attempt / name).write_bytes(os.urandom(3 * 1024**2).hex().encode())
    (attempt / "strange").symlink_to("/etc/passwd")
    (attempt / wire.STATUS).symlink_to("/etc/passwd")
    made = write_bundle(str(tmp_path / "b.tar.gz"), str(attempt.parents[1]), 1, {"verdict": None})
    assert made.size_bytes < MOST_BYTES
    left = "\n".join(made.left_out)
    assert "did not fit" in left
    assert "status.json: Too many levels" in left
    assert "strange: not a record" in left
    with tarfile.open(made.path) as archive:
        assert sum(member.size for member in archive.getmembers()) <= BUDGET_BYTES


@pytest.mark.slow
@pytest.mark.requirement("DIAG-01", "DIAG-08")
def test_a_live_run_is_looked_at_and_goes_on(holdfast: Command, tmp_path: Path) -> None:
    with live_run(holdfast, "--name", "alive") as run:
        path = tmp_path / "live.tar.gz"
        value = holdfast("diagnose", "--json", "--bundle", str(path), "alive").json()
        assert value["live"] is True
        assert value["condition"] == "running"
        assert value["verdict"]["kind"] not in ("deadlock", "busy_no_progress", "zombie", "paused")
        assert value["sections"]
        assert path.exists()
        assert holdfast("show", "--json", run.run_id).json()["condition"] == "running"


@pytest.mark.slow
@pytest.mark.requirement("DIAG-01")
def test_any_process_can_be_looked_at(holdfast: Command) -> None:
    done = holdfast("diagnose", "--pid", str(os.getpid()))
    assert done.code == 0
    assert done.out.startswith(f"pid {os.getpid()}: ")
    assert "could not be read" in done.out


@pytest.mark.slow
@pytest.mark.gotcha("U35")
@pytest.mark.requirement("OBS-12")
def test_OBS_12_a_tracker_that_gave_up_is_told_of_though_the_run_succeeded(holdfast: Command) -> None:
    line = "Disabled WandB due to initialization error: No API key configured"
    # In the middle of much output, at its beginning.
    done = holdfast(
        "run", "--", "sh", "-c", f"echo step 1; echo '{line}'; head -c 700000 /dev/zero | tr '\\0' x; exit 0"
    )
    assert done.code == 0
    assert f"warning: tracker: gave up, and the job went on: {line}" in done.err
    run_dir = holdfast("ls", "--all", "--json").json()["runs"][0]["run_dir"]
    answer = holdfast("diagnose", run_dir)
    assert "succeeded; but see the warnings" in answer.out
    assert line in answer.out
    with open(f"{run_dir}/attempts/1/events.jsonl", encoding="utf-8") as file:
        told = [event for event in map(json.loads, file) if event["event"] == "tracker_gave_up"]
    assert [event["data"]["line"] for event in told] == [line]
    calm = holdfast("run", "--", "echo", "wandb: Tracking run with wandb version 0.17.0")
    assert "warning" not in calm.err
