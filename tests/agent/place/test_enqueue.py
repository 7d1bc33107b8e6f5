"""The entry ``enqueue``: an order becomes jobs of the queue, all of them once, whatever comes in between."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.detached import ENTRY
from holdfast.agent.place.enqueue import enqueue
from holdfast.agent.place.unused import remove_unused
from holdfast.agent.queue.change.start_worker import ensure_worker
from holdfast.host.clock import parse_utc
from holdfast.host.files.code.store import tree_dir
from holdfast.model import wire
from holdfast.model.errors import PreflightFailed, StorageError, Taken, UsageError
from holdfast.model.job import JobSpec
from holdfast.model.order import CodeRef
from holdfast.model.queue import GroupKind, NewJob, OrderedJobs, OrderVerb, QueueAct, Submission
from holdfast.model.queue_order import CONFIGS, QueueOrder
from holdfast.model.record import replace
from holdfast.store.queue.queue import Queue
from holdfast.transfer.code.push import push_tree
from holdfast.transfer.code.tree import read_tree
from tests.agent.killing import build_library
from tests.budget import examples
from tests.cli.queues import end_worker
from tests.transfer.code.repositories import EntryBox, write
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.process

ORDER_ID = "20261122-104501-night-3fa2"
NO_WORKER = {"HOLDFAST_RUN_ID": "a job of holdfast starts no worker"}
FEW = 5


class QueueBox:
    """This machine as a box with a queue: `take` is the entry as a process of its own."""

    def __init__(self, tmp_path: Path) -> None:
        self.root, self.queue = f"{tmp_path}/killed-front/runs", f"{tmp_path}/queue"
        self.environ = {**os.environ, "HOLDFAST_QUEUE": self.queue, **NO_WORKER}

    def take(self, order: QueueOrder, environ: Mapping[str, str] | None = None, zone: str = "UTC +0000") -> Any:
        """The entry's answer, with `code`, its exit code."""
        done = subprocess.run(
            [sys.executable, "-I", "-S", ENTRY, "enqueue", "take", self.root, zone],
            input=wire.to_bytes(order),
            env={**self.environ, **(environ or {})},
            capture_output=True,
            check=False,
        )
        answer = json.loads(done.stdout) if done.stdout else {}
        return {**answer, "code": done.returncode, "stderr": done.stderr.decode()}

    def names(self) -> list[str]:
        """The jobs in the queue."""
        if not os.path.isdir(self.queue):
            return []
        with Queue(self.queue) as queue:
            return [job.label for job in queue.jobs()]


@pytest.fixture
def box(tmp_path: Path, isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> QueueBox:
    assert isolated_environment
    made = QueueBox(tmp_path)
    monkeypatch.setenv("HOLDFAST_QUEUE", made.queue)
    monkeypatch.setattr("holdfast.agent.queue.change.start_worker._spawn", lambda *_: None)
    return made


def put_tree(root: str, tmp_path: Path, files: dict[str, bytes | str]) -> CodeRef:
    """Have a tree of these files at the box."""
    os.makedirs(root, mode=0o700)
    tree = read_tree(str(write(tmp_path / "tree", files)), os.environ)
    push_tree(EntryBox(Path(root)), tree)  # type: ignore[arg-type]
    return tree.ref


def make_order(
    *names: str, command: tuple[str, ...] = ("true",), order_id: str = ORDER_ID, base: Any = None, **fields: Any
) -> QueueOrder:
    """An order of jobs with these names."""
    spec = JobSpec("job", command, ".", **(base or {}))
    ordered = OrderedJobs(order_id, fields.pop("sha256", "0" * 64), fields.pop("code", None), fields.pop("setup", ()))
    submission = Submission(
        group="night",
        base=wire.encode(spec),
        jobs=tuple(NewJob(name, {"name": name}) for name in names),
        runs_root="",
        cwd="",
        argv=("holdfast", "submit"),
        by="me@desk",
        at="2026-11-22T10:45:01.000Z",
        kind=fields.pop("kind", GroupKind.SWEEP),
        ordered=ordered,
    )
    return QueueOrder(submission, **fields)


def test_what_is_not_to_begin_yet_is_said_by_the_clock_of_the_desk(box: QueueBox) -> None:
    order = make_order("late")
    (job,) = order.submission.jobs
    noon = parse_utc("2126-11-22T12:00:00.000Z")
    order = replace(order, submission=replace(order.submission, jobs=(replace(job, not_before=noon),)))
    taken = box.take(order, {"TZ": "Asia/Kathmandu"}, zone="Europe/Oslo +0100")
    assert taken["taken"]["jobs"][0]["why"] == "not before 2126-11-22 13:00"


@pytest.mark.requirement("XPORT-07")
def test_an_order_is_taken_once_however_often_it_comes(box: QueueBox) -> None:
    single = make_order("train", kind=GroupKind.PLAIN)
    for fresh in (True, False, False):
        answer = enqueue(single, box.root, os.environ)
        assert (answer.fresh, [job.job for job in answer.taken.jobs], answer.total) == (fresh, ["night/train"], 1)
    # Another order of the same job is another job, unless its name was said.
    other = make_order("train", kind=GroupKind.PLAIN, order_id=ORDER_ID.replace("3fa2", "77aa"))
    assert [job.job for job in enqueue(other, box.root, os.environ).taken.jobs] == ["night/train-2"]
    with pytest.raises(Taken, match="other jobs or another code"):
        enqueue(make_order("train", sha256="1" * 64), box.root, os.environ)
    assert box.names() == ["night/train", "night/train-2"]


def test_an_order_is_taken_once_also_when_its_jobs_were_cleared(box: QueueBox) -> None:
    order = make_order("train")
    assert enqueue(order, box.root, os.environ).fresh
    with Queue(box.queue) as queue:
        queue.order(QueueAct(OrderVerb.CANCEL, by="me", at="2026-11-22T10:46:01.000Z", group="night"))
        queue.order(QueueAct(OrderVerb.CLEAR, by="me", at="2026-11-22T10:47:01.000Z"))
        assert queue.jobs() == []
    again = enqueue(order, box.root, os.environ)
    assert (again.fresh, again.taken.jobs, box.names()) == (False, (), [])
    assert "were cleared from the queue since" in again.taken.notes[-1]
    with pytest.raises(Taken, match="other jobs or another code"):
        enqueue(make_order("train", sha256="1" * 64), box.root, os.environ)


def test_jobs_that_are_there_already_are_told_with_those_that_are_new(box: QueueBox) -> None:
    enqueue(make_order("a", "b"), box.root, os.environ)
    more = make_order("a", "b", "c", order_id=ORDER_ID.replace("3fa2", "77aa"))
    for fresh in (True, False):
        answer = enqueue(more, box.root, os.environ)
        assert (answer.fresh, len(answer.taken.jobs), answer.taken.known, answer.total) == (fresh, 3, 2, 3)


def test_jobs_that_are_there_already_keep_their_code_and_it_is_said(box: QueueBox, tmp_path: Path) -> None:
    code = put_tree(box.root, tmp_path, {"train.py": "print(1)"})
    assert enqueue(make_order("a", "b", code=code), box.root, os.environ).taken.notes == ()
    write(tmp_path / "edited", {"train.py": "print(2)"})
    edited = read_tree(str(tmp_path / "edited"), os.environ)
    push_tree(EntryBox(Path(box.root)), edited)  # type: ignore[arg-type]
    orders = (
        make_order("a", "b", "c", order_id=ORDER_ID.replace("3fa2", end), code=edited.ref) for end in ("a1", "a2")
    )
    for order in orders:
        [note] = enqueue(order, box.root, os.environ).taken.notes
        assert "other code, which stays theirs: night/a and 1 more; " in note
    same = make_order("a", order_id=ORDER_ID.replace("3fa2", "a3"), code=code)
    assert enqueue(same, box.root, os.environ).taken.notes == ()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.requirement("XPORT-07")
def test_twenty_equal_orders_at_once_are_one_set_of_jobs(box: QueueBox) -> None:
    order = make_order("a", "b")
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: box.take(order), range(20)))
    assert [(answer["code"], answer["stderr"]) for answer in answers if answer["code"]] == []
    assert box.names() == ["night/a", "night/b"]
    assert len({tuple(job["id"] for job in answer["taken"]["jobs"]) for answer in answers}) == 1


def test_what_cannot_work_is_refused_whole(box: QueueBox) -> None:
    absent = CodeRef("0" * 16, 1, 1)
    for order, error, words in (
        (make_order("a", command=("/no/such/program",)), UsageError, "/no/such/program"),
        (make_order("a", code=absent), StorageError, "is not below"),
        (make_order("a", base={"secrets": ("NOT_THERE",)}, place="gpu1"), PreflightFailed, "NOT_THERE"),
        (make_order("a", base={"config": "$NOWHERE/x"}), PreflightFailed, "NOWHERE"),
        (make_order("a", "a"), UsageError, "have one name"),
        (make_order("a", configs={"0" * 32 + ".json": "{}"}), UsageError, "not the one that its name says"),
        (make_order("a", env_from="other"), UsageError, "env_from"),
    ):
        with pytest.raises(error) as raised:
            enqueue(order, box.root, os.environ)
        assert words in str(raised.value)
    assert box.names() == []
    # What is only there once the lines of setup have run is not missed before.
    enqueue(make_order("a", command=("tool-of-a-module",), setup=("module load tool",)), box.root, os.environ)
    assert box.names() == ["night/a"]


def test_configurations_lie_here_under_their_hash_and_jobs_name_them(box: QueueBox) -> None:
    name = f"{hashlib.sha256(b'{}').hexdigest()[:32]}.json"
    order = make_order("a", configs={name: "{}"})
    change: dict[str, object] = {"command": ["true", f"--config={CONFIGS}/{name}"], "config": f"{CONFIGS}/{name}"}
    job = replace(order.submission.jobs[0], change=change)
    enqueue(replace(order, submission=replace(order.submission, jobs=(job,))), box.root, os.environ)
    with Queue(box.queue) as queue:
        (queued,) = queue.jobs()
        stored = queue.submission_of(queued.id).jobs[0].change
    path = f"{box.queue}/configs/{name}"
    assert stored == {"command": ["true", f"--config={path}"], "config": path}
    with open(path) as file:
        assert file.read() == "{}"


def test_outputs_of_runs_with_copies_of_their_own_do_not_meet(box: QueueBox, tmp_path: Path) -> None:
    code = put_tree(box.root, tmp_path, {"train.sh": "echo trained\n"})
    command = ("sh", "train.sh", "--output-dir", "out")
    enqueue(make_order("a", "b", command=command, code=code), box.root, os.environ)
    shared = make_order("c", "d", command=command, code=code, order_id=ORDER_ID.replace("3fa2", "77aa"))
    ordered = shared.submission.ordered
    assert ordered is not None
    shared = replace(shared, submission=replace(shared.submission, ordered=replace(ordered, shares_tree=True)))
    with pytest.raises(UsageError, match="would all write to"):
        enqueue(shared, box.root, os.environ)


def test_a_tree_stays_while_a_job_of_the_queue_needs_it(box: QueueBox, tmp_path: Path) -> None:
    code = put_tree(box.root, tmp_path, {"train.sh": "echo trained\n"})
    enqueue(make_order("a", command=("sh", "train.sh"), code=code), box.root, os.environ)
    later = time.time() + 90 * 86400
    kept = remove_unused(box.root, now_s=later)["kept"]
    assert kept[tree_dir(box.root, code.tree)] == "a job of the queue needs it"
    journal = f"{box.queue}/journal"
    for name in os.listdir(journal):
        with open(f"{journal}/{name}", "r+b") as file:
            file.write(b"xx")
    assert "cannot be read" in remove_unused(box.root, now_s=later)["kept"][tree_dir(box.root, code.tree)]
    for name in os.listdir(journal):
        os.unlink(f"{journal}/{name}")
    assert remove_unused(box.root, now_s=later)["removed"] == [tree_dir(box.root, code.tree)]


@pytest.mark.timeout(300)
def test_a_worker_starts_what_was_ordered_over_the_read_only_tree(
    box: QueueBox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = put_tree(box.root, tmp_path, {"train.sh": "pwd\n"})
    order = make_order("a", command=("sh", "train.sh"), code=code)
    ordered = order.submission.ordered
    assert ordered is not None
    order = replace(order, submission=replace(order.submission, ordered=replace(ordered, shares_tree=True)))
    enqueue(order, box.root, os.environ)
    monkeypatch.undo()
    monkeypatch.setenv("HOLDFAST_QUEUE", box.queue)
    ensure_worker(box.queue, os.environ)
    try:
        with Queue(box.queue) as queue:
            wait_until(lambda: queue.jobs()[0].state.value == "done", what="the job is done")
            run_dir = str(queue.jobs()[0].run_dir)
    finally:
        end_worker(box.queue)
    with open(f"{run_dir}/attempts/1/output.log") as file:
        assert file.read() == f"{tree_dir(box.root, code.tree)}/files\n"
    assert not os.path.exists(f"{run_dir}/work")


def _kill(box: QueueBox, library: str, at: int) -> str:
    """What is wrong after the entry was killed at a step and asked again; empty when nothing is."""
    order_id = f"20261122-104501-night-{at:04x}"
    order = make_order(f"a{at}", f"b{at}", order_id=order_id)
    box.take(order, {"LD_PRELOAD": library, "KILL_WHO": "front", "KILL_AT": str(at)})
    left = [name for name in box.names() if name.endswith(str(at))]
    answer = box.take(order)
    if answer["code"] != 0:
        return f"asked again it answered {answer}"
    if len(left) not in (0, 2) or answer["fresh"] is bool(left):
        return f"{left} were there, and the answer was {answer}"
    there = [name for name in box.names() if name in (f"night/a{at}", f"night/b{at}")]
    return "" if len(there) == 2 else f"{there} are there"


def _check(box: QueueBox, tmp_path: Path, most: int) -> None:
    library, counted = build_library(tmp_path), tmp_path / "count"
    box.take(
        make_order("a", "b"), {"LD_PRELOAD": library, "KILL_WHO": "front", "KILL_AT": "0", "KILL_COUNT": str(counted)}
    )
    total = counted.stat().st_size
    assert total > FEW, "the library is not in the process"
    step = max(1, total // most)
    problems = {at: _kill(box, library, at) for at in range(1, total + 1, step)}
    wrong = [f"step {at} of {total}: {problem}" for at, problem in problems.items() if problem]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.requirement("XPORT-07")
@pytest.mark.timeout(180)
def test_an_enqueue_that_is_killed_leaves_no_job_or_all(box: QueueBox, tmp_path: Path) -> None:
    _check(box, tmp_path, examples(FEW))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_an_enqueue_that_is_killed_at_any_step(box: QueueBox, tmp_path: Path) -> None:
    _check(box, tmp_path, 10_000)
