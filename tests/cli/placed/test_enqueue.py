"""``submit --on PLACE`` and ``sweep submit --on PLACE``, typed at a desk whose place is this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.desk.orders.journal import JournalEntry, OrderKind, Step, list_orders, read_journal
from holdfast.model import wire
from tests.cli.queues import end_worker
from tests.desk.orders.ordering import PLACE, Desk

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

WORK = "work"
"""The copy of the code in a run directory."""


@pytest.fixture
def desk(
    tmp_path: Path, isolated_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Desk]:
    """A desk with a tree and a place with a queue, which has the bundle after the first test."""
    queue = tmp_path / "queue"
    os.environ["HOLDFAST_QUEUE"] = str(queue)
    made = Desk(tmp_path, f"{tmp_path_factory.getbasetemp()}/near-box")
    yield made
    # A run that ends without a worker begins one.
    made.clear()
    end_worker(str(queue))
    del os.environ["HOLDFAST_QUEUE"]


@pytest.mark.slow
@pytest.mark.requirement("QUEUE-19")
def test_a_job_stands_in_the_queue_there_and_runs_from_a_copy_of_the_tree(desk: Desk) -> None:
    (desk.tree / "conf.yaml").write_text("lr: 1\n")
    (desk.tree / "train.py").write_text("import os; print(os.getcwd()); open('out.txt', 'w').write('x')\n")
    (desk.tree / "job.yaml").write_text("command: [python3, train.py]\nconfig: conf.yaml\n")
    done = desk.say("submit", "--on", PLACE, "job.yaml")
    assert (done.returncode, done.stdout) == (0, f"{PLACE}:train\n"), done.stderr
    waited = desk.say("wait", f"{PLACE}:train")
    assert waited.returncode == 0, waited.stdout + waited.stderr
    (run_id,) = desk.list_runs()
    run_dir = desk.root / run_id
    assert (run_dir / "attempts/1/output.log").read_text() == f"{run_dir}/work\n"
    record = json.loads((run_dir / "run.json").read_text())
    assert record["job"]["config"] == f"{run_dir}/{WORK}/conf.yaml"
    assert (record["queued"]["name"], record["code"]["files"]) == ("train", 3)
    assert str(desk.tree) not in json.dumps({**record, "argv": []})
    # The name without a number is taken now, as on the box itself.
    again = desk.say("submit", "--on", PLACE, "job.yaml", "--json")
    assert [job["job"] for job in json.loads(again.stdout)["jobs"]] == ["train-2"], again.stderr
    assert desk.say("wait", f"{PLACE}:train-2").returncode == 0
    # What can be typed next can be typed here.
    waited = desk.say("submit", "--on", PLACE, "--name", "bad", "--wait", "--json", "--", "false")
    assert json.loads(waited.stdout)["rerun"] == f"holdfast queue retry --on {PLACE} bad"
    unknown = desk.say("queue", "show", "nothing", "--on", PLACE, "--json")
    assert json.loads(unknown.stdout)["error"]["hint"] == f"`holdfast queue ls --on {PLACE}` lists the jobs."


def test_a_dry_run_sends_and_writes_nothing(desk: Desk) -> None:
    done = desk.say("submit", "--on", PLACE, "--dry-run", "--", "python3", "train.py")
    assert (done.returncode, "nothing was sent" in done.stdout) == (0, True), done.stderr
    assert read_journal(PLACE) == ()


SWEEP = """\
name: night
job:
  command: [python3, train.py, --config, conf.yaml, "--out=out/{job}"]
  config: conf.yaml
grid:
  lr: [1, 2]
  model.depth: [3]
overlays:
  big: {width: 9}
overrides:
  - when: {lr: 2}
    overlay: big
    job: {inputs: [data.txt]}
"""


def write_sweep(desk: Desk) -> None:
    (desk.tree / "conf.yaml").write_text("lr: 0\nmodel: {depth: 1}\nwidth: 1\n")
    (desk.tree / "data.txt").write_text("x\n")
    (desk.tree / "train.py").write_text("import sys; print(open(sys.argv[2]).read()); print(sys.argv[3:])\n")
    (desk.tree / "sweep.yaml").write_text(SWEEP)


@pytest.mark.slow
@pytest.mark.requirement("QUEUE-19")
def test_a_sweep_is_read_here_and_its_jobs_run_there_over_one_tree(desk: Desk) -> None:
    write_sweep(desk)
    done = desk.say("sweep", "sweep.yaml", "--on", PLACE)
    assert (done.returncode, done.stdout) == (0, f"2 jobs in group night of {PLACE}\n"), done.stderr
    waited = desk.say("wait", f"{PLACE}:night/")
    assert waited.returncode == 0, waited.stdout + waited.stderr
    runs = {run_id: json.loads((desk.root / run_id / "run.json").read_text()) for run_id in desk.list_runs()}
    assert {record["queued"]["group"] for record in runs.values()} == {"night"}
    assert len({record["code"]["tree"] for record in runs.values()}) == 1
    outputs = [(desk.root / run_id / "attempts/1/output.log").read_text() for run_id in sorted(runs)]
    (wide,) = [text for text in outputs if "width: 9" in text]
    assert all(text in wide for text in ("lr: 2", "depth: 3", "--out=out/lr=2_model.depth=3")), wide
    inputs = [record["job"]["inputs"] for record in runs.values()]
    assert sorted(map(len, inputs)) == [0, 1]
    table = desk.say("sweep", "show", "night", "--on", PLACE, "--json")
    assert [row["state"] for row in json.loads(table.stdout)["jobs"]] == ["done", "done"], table.stdout
    # Handed in once more with a value more, also over changed code: what is there stays, what is new is added.
    (desk.tree / "train.py").write_text("print('new')\n")
    refused = desk.say("sweep", "add", "night", "--grid", "lr=4", "--on", PLACE)
    assert refused.returncode == 64, refused.stdout
    assert f"with the new values beside the old ones: holdfast sweep sweep.yaml --on {PLACE}\n" in refused.stderr
    (desk.tree / "sweep.yaml").write_text(SWEEP.replace("[1, 2]", "[1, 2, 4]"))
    more = desk.say("sweep", "submit", "--on", PLACE, "sweep.yaml", "--wait")
    assert "3 jobs in group night of box (2 of them handed in before)" in more.stdout, more.stderr
    assert (more.returncode, len(desk.list_runs())) == (0, 3), more.stdout + more.stderr


@pytest.mark.slow
def test_preflight_looks_at_the_job_there_and_leaves_nothing(desk: Desk) -> None:
    (desk.tree / "job.yaml").write_text("command: [python3, train.py]\ninputs: [train.py, missing.txt]\n")
    done = desk.say("preflight", "--on", PLACE, "job.yaml", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["place"], report["exit_code"]) == (78, PLACE, 78), done.stderr
    failed = [item for item in report["findings"] if item["level"] == "fail"]
    assert [item["subject"] for item in failed] == ["work/missing.txt"], failed
    assert desk.say("preflight", "--on", PLACE, "--", "python3", "train.py").returncode == 0
    assert desk.list_runs() == set()
    assert not [name for name in os.listdir(desk.root) if name.endswith(".tmp")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "seen"),
    [
        (("submit", "--on", "nowhere", "--", "true"), 66, "there is no place nowhere"),
        (("submit", "--on", PLACE, "--on", "local", "--", "true"), 64, "--on takes one place"),
        (("submit", "--on", PLACE, "--input", "../outside.txt", "--", "true"), 64, "not in the tree that is sent"),
        (("submit", "--on", PLACE, "bad.yaml"), 65, "bad.yaml:2: data:"),
        (("submit", "--on", PLACE, "--runs", "/x", "--", "true"), 64, "--runs and --on do not go together"),
        (("submit", "--on", PLACE, "--claims", "here", "--", "true"), 64, "by its absolute path"),
        (("submit", "--on", PLACE, "--after", "other:train", "--", "true"), 64, "that one is at other"),
        (("submit", "--after", f"{PLACE}:train", "--", "true"), 64, f"that one is at {PLACE}"),
        (("submit", "--no-code", "--", "true"), 64, "--no-code is for jobs at a place"),
        (("submit", "--on", "down", "--", "true"), 69, " was not sent yet"),
        (("submit", "--on", PLACE, "--", "/no/such/program"), 64, "/no/such/program"),
        (("submit", "--on", PLACE, "--after", "missing", "--", "true"), 64, "there is no such job"),
        (("submit", "--on", PLACE, "--secret", "NOT_THERE", "--", "true"), 78, f"secret push {PLACE} NOT_THERE"),
        (("sweep", "submit", "--on", PLACE, "bad-sweep.yaml"), 65, "one working directory"),
        (("sweep", "submit", "--on", PLACE, "far.yaml"), 65, "is the place's own, and is not read here"),
    ],
)
def test_what_cannot_be_ordered_takes_nothing(desk: Desk, words: tuple[str, ...], code: int, seen: str) -> None:
    desk.places.write_text(f'{desk.places.read_text()}\n[down]\nhost = "127.0.0.1"\nport = 1\n')
    (desk.tree / "bad.yaml").write_text("command: [x]\ndata: ../data\n")
    job = "job: {command: [true-x], config: /box/c.yaml}\n"
    (desk.tree / "far.yaml").write_text(f"{job}grid: {{lr: [1, 2]}}\noverlays: {{big: {{width: 1}}}}\n")
    bad = "job: {command: ['true']}\njobs:\n  - {name: a, job: {workdir: elsewhere}}\n  - {name: b, params: {x: 1}}\n"
    (desk.tree / "bad-sweep.yaml").write_text(bad)
    done = desk.say(*words)
    assert (done.returncode, seen in done.stderr) == (code, True), done.stderr
    listed = json.loads(desk.say("queue", "ls", "--on", PLACE, "--json").stdout)
    assert (listed["jobs"], desk.list_runs()) == ([], set())


@pytest.mark.slow
def test_an_order_without_an_answer_is_asked_about_by_its_id(desk: Desk) -> None:
    assert desk.say("submit", "--on", PLACE, "--paused", "--", "python3", "train.py").returncode == 0
    # A list looks there, where nothing has run yet.
    listed = json.loads(desk.say("ls", "--json").stdout)
    assert [(each["place"], each["asked"]) for each in listed["places"]] == [(PLACE, True)]
    (taken,) = list_orders(read_journal(PLACE)).values()
    assert (taken.step, taken.what) == (Step.TAKEN, OrderKind.JOBS)
    journal = Path(os.environ["XDG_STATE_HOME"], "holdfast/places", PLACE, "journal.jsonl")
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:-1]))
    other = JournalEntry(Step.INTENT, taken.run_id[:-4] + "0000", taken.at, what=OrderKind.JOBS)
    journal.write_text(journal.read_text() + json.dumps(wire.encode(other)) + "\n")
    done = desk.say("reconcile", PLACE, "--json")
    told = {order["run_id"]: (order["there"], order["words"]) for order in json.loads(done.stdout)["orders"]}
    assert told == {
        taken.run_id: (True, "its jobs are in the queue there"),
        other.run_id: (False, "it is not there; the same command submits it"),
    }
    assert list_orders(read_journal(PLACE))[taken.run_id].step is Step.TAKEN
