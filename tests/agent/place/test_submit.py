"""The entry ``submit``: an order becomes exactly one run, however often and from wherever it comes."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.agent.control.job.ordered import prepare_job
from holdfast.agent.view.source_change import find_change
from holdfast.core.job.setup import put_setup_first
from holdfast.model import wire
from holdfast.model.errors import PreflightFailed
from holdfast.model.job import DiskNeeds, JobSpec
from holdfast.model.order import CodeRef
from holdfast.model.record import replace
from holdfast.store.index import Index
from tests.agent.ordering import RUN_ID, OrderBox, count_job, make_order

pytestmark = pytest.mark.process

WORK = "work"
"""The copy of the code in a run directory."""


@pytest.mark.slow
def test_an_order_runs_in_a_directory_of_its_own_and_says_where_it_came_from(order_box: OrderBox) -> None:
    command = ("sh", "-c", "pwd; exit 5")
    answer = order_box.submit(make_order(*command, by="anna", desk="laptop", argv=("holdfast", "run")))
    assert answer["run"] == {
        "place": "",
        "run_id": RUN_ID,
        "run_dir": order_box.run_dir(),
        "native_id": None,
        "fresh": True,
    }
    assert order_box.ended() == 5
    record = json.loads(Path(order_box.run_dir(), wire.RUN).read_text())
    work = f"{order_box.run_dir()}/work"
    assert (record["job"]["workdir"], record["cwd"]) == (work, work)
    assert (record["ordered_by"], record["bundle"]) == ("anna@laptop", "0123456789abcdef")
    assert Path(order_box.run_dir(), "attempts/1/output.log").read_text() == f"{work}\n"
    assert ".tmp" not in Path(order_box.run_dir(), wire.RUN).read_text()

    # Like any run's: an automatic attempt does not run what somebody put in.
    assert find_change(order_box.run_dir()) == ""
    Path(order_box.run_dir(), wire.RUN).write_text(json.dumps({**record, "job": {**record["job"], "workdir": "/"}}))
    assert "hash" in find_change(order_box.run_dir())


@pytest.mark.slow
def test_the_same_order_again_is_the_same_run_and_another_job_is_not(order_box: OrderBox, tmp_path: Path) -> None:
    command, ran = count_job(tmp_path)
    order = make_order(*command)
    first = order_box.submit(order, "--prove", "0")
    assert (first["started"]["attempt"], first["problem"]) == (1, None)
    assert order_box.ended() == 3
    again = order_box.submit(order, "--prove", "0")
    assert (again["run"]["fresh"], again["started"]["exit_code"]) == (False, 3)
    other = order_box.submit(make_order("true"))
    assert (other["code"], other["error"]["code"]) == (73, "taken")
    coded = replace(order, code=CodeRef("0123456789abcdef", 1, 1))
    tree = order_box.submit(coded)
    assert (tree["code"], "another code" in tree["error"]["message"]) == (73, True)
    absent = order_box.submit(replace(coded, run_id="20261122-104501-job-0000"))
    assert (absent["code"], absent["error"]["details"]) == (74, {"code": "absent"})
    assert ran.read_text() == "x\n"


@pytest.mark.slow
@pytest.mark.requirement("RAIL-08")
def test_twenty_identical_orders_at_once_are_one_run(order_box: OrderBox, tmp_path: Path) -> None:
    command, ran = count_job(tmp_path)
    order = make_order(*command)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: order_box.submit(order), range(20)))
    assert [answer["code"] for answer in answers] == [0] * 20, answers
    assert {answer["run"]["run_dir"] for answer in answers} == {order_box.run_dir()}
    assert sum(answer["run"]["fresh"] for answer in answers) == 1
    assert order_box.ended() == 3
    assert (order_box.list_runs(), ran.read_text()) == ([RUN_ID], "x\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read"),
        (b"[]", "not a JSON object"),
        (b"{}", "format None"),
        (b'{"format": 99}', "format 99"),
        (b'{"format": 1}', "run_id is missing"),
        (b"x" * (9 << 20), "larger than"),
    ],
)
def test_what_is_no_order_is_refused(order_box: OrderBox, content: bytes, words: str) -> None:
    answer = order_box.submit(content)
    assert (answer["code"], words in answer["error"]["message"]) == (64, True), answer
    assert not os.path.exists(order_box.root)


@pytest.mark.slow
def test_an_order_is_what_its_hash_is_of_and_its_id_is_a_run_id(order_box: OrderBox) -> None:
    order = make_order("true")
    assert "hash" in order_box.submit(replace(order, job=replace(order.job, command=("false",))))["error"]["message"]
    for wrong in ("../../etc", "x", ""):
        assert "not a run id" in order_box.submit(replace(order, run_id=wrong))["error"]["message"]
    assert not os.path.exists(order_box.root)


def test_of_a_run_that_cannot_be_read_it_is_said_how_another_is_begun(order_box: OrderBox) -> None:
    """The same order again would be refused again."""
    os.makedirs(order_box.run_dir())
    Path(order_box.run_dir(), wire.RUN).write_text("{")
    answer = order_box.submit(make_order("true"))
    assert (answer["code"], "cannot be read" in answer["error"]["message"]) == (74, True)
    assert "begin another run with --run-id" in answer["error"]["hint"]


@pytest.mark.slow
def test_a_job_that_holds_a_secret_leaves_nothing(order_box: OrderBox) -> None:
    answer = order_box.submit(make_order("true", "--password=hunter2hunter2"))
    assert (answer["code"], answer["error"]["code"]) == (64, "usage")
    assert not os.path.exists(order_box.root) or not os.listdir(order_box.root)


@pytest.mark.requirement("RAIL-14", "B-85")
def test_a_line_of_setup_that_fails_ends_the_run_with_its_own_words(order_box: OrderBox, tmp_path: Path) -> None:
    command, ran = count_job(tmp_path)
    setup = ("export GREETING=hello", "echo 'no such module: cuda' >&2; (exit 7)", "echo never")
    order_box.submit(make_order(*command, setup=setup))
    assert order_box.ended() == 7
    output = Path(order_box.run_dir(), "attempts/1/output.log").read_text()
    assert output == f"no such module: cuda\nline 2 of setup failed with exit code 7: {setup[1]}\n"
    assert not ran.exists()


@pytest.mark.requirement("RAIL-14", "RAIL-18")
def test_setup_reaches_the_job_and_its_command_stays_visible(order_box: OrderBox) -> None:
    order_box.submit(
        make_order("sh", "-c", 'echo "$GREETING" "$1"', "x", "it's $HOME", setup=("export GREETING=hello",))
    )
    assert order_box.ended() == 0
    assert Path(order_box.run_dir(), "attempts/1/output.log").read_text() == "hello it's $HOME\n"
    job = wire.decode(JobSpec, json.loads(Path(order_box.run_dir(), wire.RUN).read_text())["job"])
    command = ("sh", "-c", 'echo "$GREETING" "$1"', "x", "it's $HOME")
    assert (job.command, job.setup) == (command, ("export GREETING=hello",))
    # What is executed: the line of setup stands before the user's words, which are all there.
    executed = put_setup_first(job).command
    assert executed[-5:] == command
    assert "{ export GREETING=hello\n}" in executed[:-5][2]


def test_who_types_on_the_box_finds_the_run(order_box: OrderBox, monkeypatch: pytest.MonkeyPatch) -> None:
    order_box.submit(make_order("true"))
    order_box.ended()
    monkeypatch.delenv("HOLDFAST_RUNS")
    with Index() as index:
        assert order_box.root in index.roots()


def test_paths_are_those_of_the_box() -> None:
    job = {
        "inputs": ("data/x", "/abs/y", "~/z"),
        "config": "$PLACE/${SUB}/conf.yaml",
        "disk": DiskNeeds(paths=("../sibling",)),
    }
    order = make_order("true", job=job)
    environ = {"PLACE": "/scratch", "SUB": "me"}
    found = prepare_job(order.job, order.setup, "/runs/r/work", environ)
    assert found.workdir == "/runs/r/work"
    assert found.inputs == (f"/runs/r/{WORK}/data/x", "/abs/y", os.path.expanduser("~/z"))
    assert found.config == "/scratch/me/conf.yaml"
    assert found.disk.paths == ("/runs/r/sibling",)
    assert found.checkpoints.mirror is None
    with pytest.raises(PreflightFailed, match=r"config: .*\$SUB is not set there"):
        prepare_job(order.job, order.setup, "/runs/r/work", {"PLACE": "/scratch"})
