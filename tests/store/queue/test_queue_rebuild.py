"""The database is made from the journal and the runs: lost, damaged, old, behind, it comes back as it was."""

from __future__ import annotations

import glob
import os
import random
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.model.errors import StorageError, UsageError
from holdfast.model.queue import JobState, OrderVerb, QueuedJob
from holdfast.store.queue.journal import SCHEMA, Journal, JournalAct, NewerQueue, list_ordered_trees
from holdfast.store.queue.queue import JobMoved, Queue
from tests.budget import examples
from tests.store.queueing import dump, finish, job, no_runs, order, states, submission

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.files
S = JobState
V = OrderVerb


def lose(directory: Path) -> None:
    """Remove every database; the journal stays."""
    for path in glob.glob(f"{directory}/queue.*.db*"):
        os.unlink(path)


def run_of(job_id: int, name: str, state: JobState, *, attempts: int = 1, **facts: Any) -> QueuedJob:
    """What a run directory says of a job."""
    run_id = f"20261120-100000-digits-{job_id:04x}"
    return QueuedJob(0, str(job_id), "g", name, state, run_id=run_id, attempts=attempts, runs_root="/runs", **facts)


def test_a_job_that_a_person_holds_stays_held_with_who_and_why(tmp_path: Path) -> None:
    with Queue(str(tmp_path / "q"), find_runs=no_runs) as queue:
        first, second = queue.submit(submission("a", "b"))
        queue.order(order(V.PAUSE, first, reason="the data set is not there yet"))
    lose(tmp_path / "q")
    with Queue(str(tmp_path / "q"), find_runs=no_runs) as queue:
        (held,) = queue.jobs(states=(S.HELD,))
        assert (held.id, held.note) == (first, "held by anna: the data set is not there yet")
        assert [each.id for each in queue.candidates(now=0.0, limit=9, without_groups=(), cards=True, slots=True)] == [
            second
        ]
        assert queue.order(order(V.RESUME)) == ()
        assert [each.id for each in queue.order(order(V.RESUME, first))] == [first]


@pytest.mark.parametrize("group", ["g", "default"])
def test_what_waits_for_a_replaced_job_waits_for_the_new_one_after_a_rebuild(group: str, tmp_path: Path) -> None:
    with Queue(str(tmp_path / "q"), find_runs=no_runs) as queue:
        (first,) = queue.submit(submission(job("a", sha256="1"), group=group, max_parallel=2))
        queue.submit(submission(job("b", "a"), group=group))
        queue.order(order(V.CANCEL, first))
        queue.submit(submission(job("a", sha256="2"), group=group))
        queue.submit(submission("x", group="closed"))
        queue.order(order(V.CANCEL, group="closed"))
        queue.order(order(V.CLEAR, group="closed"))
        # Of a group that stays the file stays, for what it says of the group; the default group may lose it.
        assert os.path.exists(tmp_path / "q/journal/0000000001.jsonl") == (group == "g")
    lose(tmp_path / "q")
    with Queue(str(tmp_path / "q"), find_runs=no_runs) as queue:
        assert states(queue) == {"a": S.QUEUED, "b": S.BLOCKED}
        assert [each.name for each in queue.needs_of(2)] == ["a"]
        assert group == "default" or queue.groups()["g"].max_parallel == 2
        assert queue.submit(submission(job("b", "a"), group=group)) == (2,)
        with pytest.raises(UsageError, match=r"b is in the queue with --after a \(this one: none\)"):
            queue.submit(submission("b", group=group))


ACTS = st.lists(
    st.tuples(
        st.sampled_from([*V, "submit", "submit", "submit"]),
        st.integers(0, 7),
        st.integers(0, 7),
        st.sampled_from(["g", "h", "default"]),
    ),
    max_size=12,
)


def act(queue: Queue, what: OrderVerb | str, x: int, y: int, group: str) -> None:
    """One act of a person, as they come; those that make no sense are refused and change nothing."""
    try:
        if isinstance(what, OrderVerb):
            queue.order(build(what, x, y, group))
        elif y % 3:
            queue.submit(submission(f"c{x}", job(f"c{y}", *([f"c{x}"] if x != y else [])), group=group))
        else:
            queue.submit(submission(job(f"c{x}", "g/", sha256=str(y)), group=group, paused=x == 7))
    except UsageError:
        return


def build(verb: OrderVerb, x: int, y: int, group: str) -> Any:
    """An order about one job or a group."""
    if verb is V.MOVE:
        values: list[dict[str, Any]] = [{"to": "first"}, {"to": "last"}, {"to": "before", "key": str(y)}]
        return order(verb, x, **values[y % 3])
    if verb is V.EDIT:
        return order(verb, x, priority=y) if x % 2 else order(verb, group=group, max_parallel=y)
    if verb is V.CLEAR or y % 4 == 0:
        return order(verb, group=None if x % 2 else group)
    return order(verb, x, y)


@pytest.mark.requirement("QUEUE-01")
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=ACTS)
def test_a_rebuild_gives_what_any_acts_have_made(acts: list[tuple[Any, int, int, str]], tmp_path_factory: Any) -> None:
    directory = tmp_path_factory.mktemp("queue", numbered=True)
    directory.chmod(0o700)
    with Queue(str(directory)) as queue:
        for each in acts:
            act(queue, *each)
        before = dump(queue)
    lose(directory)
    with Queue(str(directory), find_runs=no_runs) as queue:
        assert dump(queue) == before


@pytest.mark.requirement("QUEUE-01")
def test_nothing_runs_twice_after_a_rebuild(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with Queue(str(path)) as queue:
        queue.submit(submission("live", "won", "lost", "made", "new", job("after", "won")))
    lose(path)
    found = [
        run_of(1, "live", S.RUNNING),
        run_of(2, "won", S.PRODUCED, outcome="succeeded", exit_code=0),
        run_of(3, "lost", S.FAILED, outcome="failed", exit_code=7, note="exit code 7"),
        run_of(4, "made", S.CLAIMED, attempts=0),
        run_of(5, "somebody else's", S.RUNNING),
    ]
    asked: list[tuple[list[str], str]] = []

    def find_runs(roots: Any, queue_id: str, _: float = 0.0) -> list[QueuedJob]:
        asked.append((list(roots), queue_id))
        return found

    with Queue(str(path), find_runs=find_runs) as queue:
        assert queue.notice is not None
        assert "made again" in queue.notice
        assert asked == [(["/runs"], queue.settings().queue_id)]
        assert states(queue) == {
            "live": S.RUNNING,
            "won": S.PRODUCED,
            "lost": S.FAILED,
            "made": S.CLAIMED,
            "new": S.QUEUED,
            "after": S.BLOCKED,
        }
        lost = queue.find(["g/lost"])[0]
        assert (lost.exit_code, lost.note, lost.attempts) == (7, "exit code 7", 1)
        queue.move_on(2, S.DONE)
        assert states(queue)["after"] is S.QUEUED
    with Queue(str(path), find_runs=find_runs) as queue:
        assert queue.notice is None


def test_an_order_that_came_after_the_last_attempt_still_holds(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with Queue(str(path)) as queue:
        again, gone, third = queue.submit(submission("again", "gone", "third"))
        for each in (again, gone, third):
            finish(queue, each, S.FAILED)
        queue.order(order(V.RETRY, again, gone, third))
        queue.order(order(V.CANCEL, gone))
    lose(path)
    found = [run_of(again, "again", S.FAILED), run_of(gone, "gone", S.FAILED)]
    found.append(run_of(third, "third", S.FAILED, attempts=2))
    with Queue(str(path), find_runs=lambda *_: found) as queue:
        assert states(queue) == {"again": S.QUEUED, "gone": S.CANCELLED, "third": S.FAILED}
        assert queue.find(["g/again"])[0].run_id == found[0].run_id


def test_a_run_that_cannot_be_read_holds_its_job_until_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with Queue(str(path)) as queue:
        queue.submit(submission("a", job("other", change={"name": "else"})))
    lose(path)
    suspect = QueuedJob(0, "", "", "digits", S.HELD, runs_root="/runs", note="run x cannot be read")
    with Queue(str(path), find_runs=lambda *_: [suspect]) as queue:
        assert states(queue) == {"a": S.HELD, "other": S.QUEUED}
        assert queue.find(["g/a"])[0].note == "run x cannot be read"
        for verb in (V.RESUME, V.RETRY):
            queue.order(order(verb, group="g"))
            assert states(queue)["a"] is S.HELD
        queue.order(order(V.RESUME, 1))
        assert states(queue)["a"] is S.QUEUED


def test_nothing_starts_until_the_runs_were_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with Queue(str(path)) as queue:
        queue.submit(submission("a"))
    lose(path)
    wish: dict[str, Any] = {"now": 0.0, "limit": 9, "without_groups": (), "cards": True, "slots": True}
    with Queue(str(path)) as queue:
        assert queue.notice is not None
        assert "nothing starts until" in queue.notice
        queue.submit(submission("b"))
        assert queue.candidates(**wish) == []
        with Queue(str(path), find_runs=no_runs) as worker:
            assert [each.name for each in worker.candidates(**wish)] == ["a", "b"]
        assert [each.name for each in queue.candidates(**wish)] == ["a", "b"]


def make(path: Path) -> dict[str, JobState]:
    """A queue with jobs in several states, closed."""
    with Queue(str(path)) as queue:
        many = tuple(job(f"c{i}", change={"command": ["echo", "x" * 200, str(i)]}) for i in range(60))
        ids = queue.submit(submission(*many))
        finish(queue, ids[0], S.FAILED)
        queue.order(order(V.CANCEL, ids[1]))
        return states(queue)


def read_failed(_: Any, __: str, ___: float = 0.0) -> list[QueuedJob]:
    """What the runs of `make` say."""
    return [run_of(1, "c0", S.FAILED)]


def _truncate(data: bytearray, at: int) -> bytes:
    return bytes(data[:at])


def _zero(data: bytearray, at: int) -> bytes:
    data[at : at + 512] = bytes(512)
    return bytes(data)


def _noise(data: bytearray, at: int) -> bytes:
    data[at : at + 512] = random.Random(at).randbytes(512)
    return bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [_truncate, _zero, _noise])
def test_a_damaged_database_is_made_again_and_that_is_said(
    damage: Callable[[bytearray, int], bytes], tmp_path: Path
) -> None:
    before = make(tmp_path / "queue")
    (database,) = glob.glob(f"{tmp_path}/queue/queue.*.db")
    with open(database, "rb") as file:
        whole = file.read()
    said = 0
    for place in range(20):
        path = tmp_path / f"q{place}"
        path.mkdir(mode=0o700)
        os.mkdir(path / "journal")
        for name in os.listdir(tmp_path / "queue/journal"):
            os.link(tmp_path / "queue/journal" / name, path / "journal" / name)
        at = len(whole) * place // 20 // 512 * 512
        (path / "queue.1.db").write_bytes(damage(bytearray(whole), at))
        with Queue(str(path), find_runs=read_failed) as queue:
            try:
                found = states(queue)
                new = queue.submit(submission("new"))
                queue.move_on(new[0], S.CLAIMED, run_id="x")
                queue.move_on(new[0], S.RUNNING)
            except (StorageError, JobMoved) as error:
                raise AssertionError(f"damage at {at}: {error}") from error
            if queue.notice is not None:
                said += 1
                assert glob.glob(f"{path}/queue.1.db.damaged-*")
                assert states(queue) == {**before, "new": S.RUNNING}
            else:
                # SQLite did not notice: nothing that a start rests on was hit.
                assert found == before
    assert said >= 5


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 100, b"SQLite format 3\0" + bytes(5000)])
def test_a_file_that_is_no_database_is_kept_aside(content: bytes, tmp_path: Path) -> None:
    before = make(tmp_path / "queue")
    (database,) = glob.glob(f"{tmp_path}/queue/queue.*.db")
    for _ in range(2):
        newest = max(glob.glob(f"{tmp_path}/queue/queue.*.db"))
        with open(newest, "wb") as file:
            file.write(content)
        with Queue(f"{tmp_path}/queue", find_runs=read_failed) as queue:
            assert states(queue) == before
            assert queue.notice is not None
            assert queue.path != database
    assert len(glob.glob(f"{tmp_path}/queue/*.damaged-*")) == 1


def test_an_older_database_is_made_again_and_a_newer_one_refused(tmp_path: Path) -> None:
    before = make(tmp_path / "queue")
    for version, word in ((0, "empty"), (99, None)):
        (database,) = glob.glob(f"{tmp_path}/queue/queue.*.db")
        db = sqlite3.connect(database)
        db.execute(f"PRAGMA user_version = {version}")
        db.close()
        if word is None:
            with pytest.raises(StorageError, match="newer holdfast"):
                Queue(f"{tmp_path}/queue", find_runs=read_failed)
            assert os.path.exists(database)
            continue
        with Queue(f"{tmp_path}/queue", find_runs=read_failed) as queue:
            assert states(queue) == before
            assert word in str(queue.notice)


def test_a_queue_that_a_newer_holdfast_uses_is_left_to_that_one(tmp_path: Path) -> None:
    """Also when its newest act stands in the database already: the newer one has applied it."""
    path = str(tmp_path / "queue")
    with Queue(path) as worker:
        worker.submit(submission("a"))
        journal = Journal(path)
        act = journal.read(1)
        os.unlink(journal.path(1))
        journal.commit(JournalAct(1, {**act.head, "schema": SCHEMA + 1}, act.jobs))
        for use in (
            worker.catch_up,
            lambda: worker.candidates(now=0, limit=1, without_groups=(), cards=True, slots=True),
            lambda: Queue(path),
            lambda: list_ordered_trees(path),
        ):
            with pytest.raises(NewerQueue, match="newer holdfast"):
                use()
        journal.close()


def test_what_a_worker_has_started_survives_a_rebuild_under_it(tmp_path: Path) -> None:
    path = str(tmp_path / "queue")
    with Queue(path) as worker:
        first, second = worker.submit(submission("a", "b"))
        worker.move_on(first, S.CLAIMED, run_id="20261120-100000-digits-0001")
        os.rename(worker.path, f"{path}/elsewhere")
        with Queue(path, find_runs=no_runs) as other:
            assert "made again" in str(other.notice)
        # The run was not made yet when the directories were read: only the worker knows of the claim.
        moved = worker.move_on(first, S.RUNNING, attempts=1)
        assert (moved.state, moved.run_id) == (S.RUNNING, "20261120-100000-digits-0001")
        assert states(worker) == {"a": S.RUNNING, "b": S.QUEUED}
        worker.move_on(second, S.CLAIMED, run_id="x")


def hand_in(directory: Path) -> None:
    """Three submissions: a; b, which needs a; c."""
    with Queue(str(directory), find_runs=no_runs) as queue:
        queue.submit(submission("a"))
        queue.submit(submission(job("b", "a")))
        queue.submit(submission("c"))


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def test_one_damaged_act_costs_its_own_jobs_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    hand_in(path)
    lose(path)
    torn = path / "journal/0000000001.jsonl"
    tear(torn)
    for _ in range(2):
        with Queue(str(path), find_runs=no_runs) as queue:
            assert states(queue) == {"b": S.HELD, "c": S.QUEUED}
            assert "0000000001.jsonl.damaged cannot be read" in str(queue.notice)
    with Queue(str(path), find_runs=no_runs) as queue:
        queue.submit(submission("a"))
        ids = [found.id for found in queue.jobs()]
        assert len(set(ids)) == 3
    lose(path)
    with Queue(str(path), find_runs=no_runs) as queue:
        assert states(queue) == {"a": S.QUEUED, "b": S.HELD, "c": S.QUEUED}
    (path / "journal/0000000001.jsonl.damaged").unlink()
    with Queue(str(path), find_runs=no_runs) as queue:
        assert queue.notice is None


def test_a_lost_order_holds_what_was_handed_in_before_it(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with Queue(str(path), find_runs=no_runs) as queue:
        queue.submit(submission("a"))
        queue.order(order(V.CANCEL, 1))
        queue.submit(submission("b"))
    lose(path)
    (path / "journal/0000000002.jsonl").write_bytes(b"")
    with Queue(str(path), find_runs=no_runs) as queue:
        assert states(queue) == {"a": S.HELD, "b": S.QUEUED}


@pytest.mark.parametrize("harm", [tear, os.unlink, lambda path: path.write_bytes(b"")], ids=["torn", "gone", "empty"])
def test_a_damaged_journal_beside_a_sound_database_is_told(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    path = tmp_path / "queue"
    hand_in(path)
    harm(path / "journal/0000000003.jsonl")
    with Queue(str(path), find_runs=no_runs) as queue:
        assert "0000000003.jsonl is damaged or gone" in str(queue.notice)
        assert states(queue) == {"a": S.QUEUED, "b": S.BLOCKED, "c": S.QUEUED}


@pytest.mark.requirement("QUEUE-01")
def test_an_old_copy_of_the_database_runs_nothing_again(tmp_path: Path) -> None:
    """Seen: 5 of 5 jobs ran twice after a home directory had been rolled back, and nobody was told."""
    path = tmp_path / "queue"
    hand_in(path)
    (old,) = path.glob("queue.*.db")
    copy = old.read_bytes()
    with Queue(str(path), find_runs=no_runs) as queue:
        finish(queue, 1)
    for part in path.glob("queue.*.db*"):
        part.unlink()
    old.write_bytes(copy)

    def find_runs(_: Any, __: str, ___: float = 0.0) -> list[QueuedJob]:
        return [run_of(1, "a", S.DONE)]

    with Queue(str(path), find_runs=find_runs) as queue:
        assert states(queue) == {"a": S.DONE, "b": S.QUEUED, "c": S.QUEUED}
        assert "an old copy was put in its place" in str(queue.notice)
    with Queue(str(path), find_runs=find_runs) as queue:
        assert queue.notice is None


def test_a_lost_id_is_taken_from_the_journal(tmp_path: Path) -> None:
    make(tmp_path / "queue")
    with Queue(f"{tmp_path}/queue") as queue:
        known = queue.settings().queue_id
    lose(tmp_path / "queue")
    os.unlink(tmp_path / "queue/queue.json")
    with Queue(f"{tmp_path}/queue", find_runs=no_runs) as queue:
        assert queue.settings().queue_id == known
