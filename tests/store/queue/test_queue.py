"""The queue's store: what is handed in, what is refused, what may start, what orders do."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.model.errors import NotPermitted, UsageError
from holdfast.model.queue import DEFAULT_GROUP, IfChanged, JobState, OrderVerb
from holdfast.store.queue.queue import JobMoved, Queue, queue_directory
from tests.each import each
from tests.store.queueing import finish, job, names, order, states, submission

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.files
S = JobState
V = OrderVerb


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with Queue(str(tmp_path / "queue")) as made:
        yield made


def start(
    queue: Queue, *, now: float = 1000.0, cards: bool = True, slots: bool = True, without: tuple[str, ...] = ()
) -> list[str]:
    found = queue.candidates(now=now, limit=100, without_groups=without, cards=cards, slots=slots)
    return [each.name for each in found]


@pytest.mark.requirement("QUEUE-02")
def test_a_file_handed_in_again_in_another_order_adds_only_what_is_new(queue: Queue) -> None:
    first = queue.submit(submission("a", "b"))
    finish(queue, first[0])
    again = queue.submit(submission("c", "b", "a"))
    assert again == (3, first[1], first[0])
    assert states(queue) == {"a": S.DONE, "b": S.QUEUED, "c": S.QUEUED}
    assert len(os.listdir(f"{queue.directory}/journal")) == 2


@pytest.mark.requirement("QUEUE-02")
def test_a_name_of_another_configuration_is_refused_with_both_hashes(queue: Queue) -> None:
    queue.submit(submission(job("a", sha256="1" * 64)))
    with pytest.raises(UsageError, match=r"g/a .*1111111111, this one is 2222222222"):
        queue.submit(submission(job("a", sha256="2" * 64), "b"))
    assert states(queue) == {"a": S.QUEUED}


def test_a_cancelled_job_that_never_started_is_replaced_also_where_it_is_needed(queue: Queue) -> None:
    a, _, c = queue.submit(submission(job("a", sha256="1"), "b", job("c", "a", "b")))
    queue.order(order(V.CANCEL, a))
    (new,) = queue.submit(submission(job("a", sha256="2")))
    assert states(queue) == {"a": S.QUEUED, "b": S.QUEUED, "c": S.BLOCKED}
    assert [each.id for each in queue.needs_of(c)] == [2, new]
    assert queue.submit(submission(job("a", sha256="2"))) == (new,)
    finish(queue, new)
    assert [[each.id for each in queue.done_needs(ids)] for ids in ([c], [a], [])] == [[new], [], []]
    finish(queue, 2)
    assert states(queue)["c"] is S.QUEUED
    # One that has run, and one that waits, keep their names.
    for name, hint in (("a", "a name of its own"), ("c", "holdfast queue cancel g/c")):
        with pytest.raises(UsageError, match=hint):
            queue.submit(submission(job(name, sha256="3")))


def test_a_job_that_replaces_another_cannot_wait_for_what_waits_for_that(queue: Queue) -> None:
    a, b = queue.submit(submission(job("a", sha256="1"), job("b", "a")))
    queue.order(order(V.CANCEL, a))
    with pytest.raises(UsageError, match="nothing could ever start: a needs b, b needs a"):
        queue.submit(submission(job("a", "b", sha256="2")))
    # Both replaced, the other way round: what the old ones needed is gone with them.
    queue.order(order(V.CANCEL, b))
    queue.submit(submission(job("a", "b", sha256="2"), job("b", sha256="2")))
    assert states(queue) == {"a": S.BLOCKED, "b": S.QUEUED}


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ((("a",), {}), ((), {})),
        (((), {}), (("a",), {})),
        ((("a",), {}), (("a", "h/"), {})),
        (((), {"priority": 5}), ((), {})),
        (((), {}), ((), {"not_before": 2e9})),
    ],
)
def test_what_is_said_beside_the_configuration_replaces_or_is_refused(
    queue: Queue, first: tuple[tuple[str, ...], dict[str, Any]], then: tuple[tuple[str, ...], dict[str, Any]]
) -> None:
    queue.submit(submission("x", group="h"))
    _, b = queue.submit(submission("a", job("b", *first[0], **first[1])))
    other = submission(job("b", *then[0], **then[1]))
    # One that waits keeps what it was handed in with until it is taken out, or changed.
    with pytest.raises(
        UsageError, match=r"g/b is in the queue with .*: (take that|change that).*holdfast queue .* g/b"
    ):
        queue.submit(other)
    queue.order(order(V.CANCEL, b))
    (new,) = queue.submit(other)
    assert (new > b, queue.submit(other)) == (True, (new,))
    stored = queue.submission_of(new).jobs[0]
    assert (stored.needs, stored.priority, stored.not_before) == (
        *(then[0], then[1].get("priority", 0), then[1].get("not_before")),
    )
    assert len(queue.needs_of(new)) == len(then[0])


def test_other_files_and_claims_are_no_same_job_either(queue: Queue) -> None:
    queue.submit(submission("a"))
    for fields in ({"if_changed": IfChanged.HOLD}, {"claims": "/shared"}):
        with pytest.raises(UsageError, match="take that one out first"):
            queue.submit(submission("a", **fields))


def test_the_same_said_in_other_words_or_after_an_order_is_the_same(queue: Queue) -> None:
    a, b, c = queue.submit(submission("a", "b", job("c", "a", "b", priority=1)))
    for needs in (("b", "g/a"), ("g/b", "a", "a")):
        assert queue.submit(submission(job("c", *needs, priority=1))) == (c,)
    (d,) = queue.submit(submission(job("d", "g/"), group="h"))
    # As it was then, by its word; and by what that means now.
    for words in ("g/", "g/c g/b g/a"):
        assert queue.submit(submission(job("d", *words.split()), group="h")) == (d,)
    queue.submit(submission("e"))
    assert queue.submit(submission(job("d", "g/"), group="h")) == (d,)
    with pytest.raises(UsageError, match=r"h/d is in the queue with --after g/ \(this one: g/a, g/e\)"):
        queue.submit(submission(job("d", "g/a", "g/e"), group="h"))
    # A changed priority is that of whoever changed it last; a job that was replaced is the one of its name.
    queue.order(order(V.EDIT, c, priority=9))
    for priority in (1, 9):
        assert queue.submit(submission(job("c", "a", "b", priority=priority))) == (c,)
    queue.order(order(V.CANCEL, a))
    queue.submit(submission(job("a", sha256="2")))
    assert queue.submit(submission(job("c", "a", "b", priority=1))) == (c,)
    assert b


def test_a_misspelt_need_is_told_before_a_job_is_taken_out_for_it(queue: Queue) -> None:
    queue.submit(submission("a", job("b", "a")))
    with pytest.raises(UsageError) as caught:
        queue.submit(submission(job("b", "aa")))
    lines = str(caught.value).splitlines()
    assert ["there is no such job" in line for line in lines] == [True, False]
    assert "take that one out first" in lines[1]


def test_needs_that_are_done_and_gone_are_not_asked_for_again(queue: Queue) -> None:
    (a,) = queue.submit(submission("a", group=DEFAULT_GROUP))
    (b,) = queue.submit(submission(job("b", "default/a")))
    finish(queue, a)
    queue.order(order(V.CLEAR, group=DEFAULT_GROUP))
    assert queue.submit(submission(job("b", "default/a"))) == (b,)
    assert queue.submit(submission("b")) == (b,), "it needs nothing any more"


def test_of_one_that_has_begun_what_it_needs_stays_and_its_priority_can_be_changed(queue: Queue) -> None:
    a, b = queue.submit(submission("a", "b"))
    finish(queue, b, S.FAILED)
    for other, words in (
        (job("b", "a"), r"no --after \(this one: a\): it has begun and keeps that"),
        (
            job("b", priority=3),
            r"--priority 0 \(this one: 3\): change that one \(holdfast queue edit g/b --priority 3\)",
        ),
        (
            job("b", sha256="2"),
            r"holdfast restart g/b -- COMMAND \(or --job FILE\).*or give this one a name of its own",
        ),
    ):
        with pytest.raises(UsageError, match=words):
            queue.submit(submission(other))
    # For one that is done none of it has a meaning.
    finish(queue, a)
    assert queue.submit(submission(job("a", "b", priority=7))) == (a,)


@pytest.mark.requirement("QUEUE-02")
def test_two_jobs_of_one_name_are_refused_with_their_positions(queue: Queue) -> None:
    with pytest.raises(UsageError, match="jobs 1 and 3 have one name: a"):
        queue.submit(submission("a", "b", "a"))
    assert queue.counts() == {}
    assert os.listdir(f"{queue.directory}/journal") == []


@pytest.mark.parametrize("name", ["", "-x", "a/b", "a b", "ä", "a" * 201, "a\n", "."])
def test_a_name_that_could_be_taken_for_something_else_is_refused(queue: Queue, name: str) -> None:
    with pytest.raises(UsageError, match="a name is"):
        queue.submit(submission(job(name)))
    with pytest.raises(UsageError, match="a name is"):
        queue.submit(submission("a", group=name))


def test_all_mistakes_are_told_at_once_and_no_more_than_ten(queue: Queue) -> None:
    with pytest.raises(UsageError) as caught:
        queue.submit(submission(*(job(f"c{i}", f"missing{i}") for i in range(12))))
    text = str(caught.value)
    assert text.count("there is no such job") == 10
    assert "and 2 more" in text


def test_needs_are_found_in_any_order_and_near_names_are_proposed(queue: Queue) -> None:
    queue.submit(submission(job("last", "first"), "first"))
    assert states(queue) == {"first": S.QUEUED, "last": S.BLOCKED}
    with pytest.raises(UsageError, match=r"x needs g/frist: there is no such job \(near: g/first"):
        queue.submit(submission(job("x", "g/frist"), group="h"))


def test_a_cycle_is_refused_with_its_path(queue: Queue) -> None:
    with pytest.raises(UsageError, match="b needs c, c needs d, d needs b"):
        queue.submit(submission(job("a", "b"), job("b", "c"), job("c", "d"), job("d", "b")))
    with pytest.raises(UsageError, match="a needs a"):
        queue.submit(submission(job("a", "a")))
    queue.submit(submission(job("a", "b", "c"), job("b", "d"), job("c", "d"), "d"))
    assert start(queue) == ["d"]


@pytest.mark.requirement("QUEUE-10")
def test_a_whole_group_is_needed_as_it_was_then(queue: Queue) -> None:
    ids = queue.submit(submission("a", "b"))
    queue.submit(submission(job("eval", "g/"), group="h"))
    queue.submit(submission("c"))
    finish(queue, ids[0])
    assert states(queue, "h") == {"eval": S.BLOCKED}
    finish(queue, ids[1])
    assert states(queue, "h") == {"eval": S.QUEUED}


@pytest.mark.requirement("QUEUE-10")
@pytest.mark.parametrize("end", [S.FAILED, S.CANCELLED])
def test_only_done_satisfies(queue: Queue, end: JobState) -> None:
    (first, second) = queue.submit(submission("a", job("b", "a")))
    finish(queue, first, end)
    assert states(queue)["b"] is S.BLOCKED
    queue.submit(submission(job("c", "a")))
    (late,) = queue.find(["g/c"])
    assert late.state is S.BLOCKED
    assert late.note == f"needs g/a, which is {end.value}"
    assert [need.name for need in queue.needs_of(second)] == ["a"]
    queue.order(order(V.RETRY, first))
    finish(queue, first)
    assert states(queue) == {"a": S.DONE, "b": S.QUEUED, "c": S.QUEUED}
    assert queue.find(["g/c"])[0].note == ""


@pytest.mark.requirement("QUEUE-10")
def test_what_is_not_done_any_more_is_waited_for_again(queue: Queue) -> None:
    first, second = queue.submit(submission("a", job("b", "a")))
    finish(queue, first)
    queue.move_on(first, S.FAILED, note="its artifact has gone")
    assert states(queue) == {"a": S.FAILED, "b": S.BLOCKED}
    assert queue.find(["g/b"])[0].open_needs == 1
    with pytest.raises(JobMoved):
        queue.move_on(second, S.CLAIMED)


@pytest.mark.requirement("QUEUE-16")
def test_no_level_is_skipped(queue: Queue) -> None:
    (only,) = queue.submit(submission("a"))
    for state in (S.RUNNING, S.PRODUCED, S.DONE, S.FAILED):
        with pytest.raises(JobMoved, match=f"g/a is queued and cannot become {state.value}"):
            queue.move_on(only, state)
    queue.move_on(only, S.CLAIMED, run_id="r")
    for state in (S.PRODUCED, S.DONE):
        with pytest.raises(JobMoved):
            queue.move_on(only, state)
    queue.move_on(only, S.RUNNING)
    with pytest.raises(JobMoved):
        queue.move_on(only, S.DONE)


def test_a_claim_of_a_job_that_was_cancelled_meanwhile_changes_nothing(queue: Queue) -> None:
    first, second = queue.submit(submission("a", "b"))
    queue.order(order(V.CANCEL, first))
    with pytest.raises(JobMoved):
        queue.move_many([(second, S.CLAIMED, {"run_id": "x"}), (first, S.CLAIMED, {"run_id": "y"})])
    assert states(queue) == {"a": S.CANCELLED, "b": S.QUEUED}


def test_best_first_and_only_what_is_of_use(queue: Queue) -> None:
    wish = {"gpus": {"count": 2, "devices": []}}
    queue.submit(submission("a", job("b", priority=5), job("c", change=wish), job("d", not_before=2000.0)))
    queue.submit(submission("e", group="h"))
    assert start(queue) == ["b", "a", "c", "e"]
    assert start(queue, now=2000.0, without=("h", "unknown")) == ["b", "a", "c", "d"]
    assert start(queue, cards=False) == ["b", "a", "e"]
    assert start(queue, slots=False) == ["c"]
    assert start(queue, cards=False, slots=False) == []
    assert queue.find(["g/c"])[0].cards == 2
    assert queue.next_time(1000.0) == 2000.0
    assert queue.next_time(2000.0) is None
    assert [each.name for each in queue.jobs(limit=2)] == ["b", "a"]


def test_a_clock_that_is_set_back_reorders_nothing(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.submit(submission("a"))
    monkeypatch.setattr("holdfast.store.queue.engine.epoch_s", lambda: 1.0)
    queue.submit(submission("b"))
    assert names(queue) == ["a", "b"]
    assert start(queue) == ["a", "b"]


@pytest.mark.slow
def test_moved_jobs_keep_one_order(queue: Queue) -> None:
    a, _, c, d = queue.submit(submission("a", "b", "c", "d"))
    queue.order(order(V.MOVE, d, c, to="first"))
    assert names(queue) == ["c", "d", "a", "b"]
    queue.order(order(V.MOVE, c, to="last"))
    assert names(queue) == ["d", "a", "b", "c"]
    for _ in range(60):
        queue.order(order(V.MOVE, c, to="before", key=str(a)))
        queue.order(order(V.MOVE, d, to="before", key=str(a)))
    assert names(queue) == ["c", "d", "a", "b"]
    with pytest.raises(UsageError, match="before itself"):
        queue.order(order(V.MOVE, a, to="before", key=str(a)))
    with pytest.raises(UsageError, match="no place"):
        queue.order(order(V.MOVE, a, to="somewhere"))


@pytest.mark.requirement("QUEUE-20")
def test_pause_drain_and_resume(queue: Queue) -> None:
    ids = queue.submit(submission("a", "b"))
    queue.order(order(V.PAUSE))
    assert queue.settings().paused
    queue.order(order(V.DRAIN))
    queue.order(order(V.RESUME))
    assert (queue.settings().paused, queue.settings().draining) == (False, False)
    queue.hold_group("g", "3 jobs in a row failed")
    assert queue.groups()["g"].held == "3 jobs in a row failed"
    queue.order(order(V.PAUSE, ids[0]))
    assert states(queue)["a"] is S.HELD
    # What a person holds by name goes on by name alone.
    assert queue.order(order(V.RESUME, group="g")) == ()
    assert (queue.groups()["g"].held, states(queue)["a"]) == ("", S.HELD)
    assert [each.name for each in queue.order(order(V.RESUME, ids[0]))] == ["a"]
    assert states(queue)["a"] is S.QUEUED
    queue.submit(submission("p", group="quiet", paused=True))
    assert queue.groups()["quiet"].paused


@pytest.mark.requirement("QUEUE-20")
def test_cancel_takes_waiting_jobs_out_and_leaves_active_ones(queue: Queue) -> None:
    first, *_ = queue.submit(submission("a", "b", job("c", "b")))
    finish(queue, first, S.RUNNING)
    changed = queue.order(order(V.CANCEL, group="g"))
    assert [each.name for each in changed] == ["b", "c"]
    assert states(queue) == {"a": S.RUNNING, "b": S.CANCELLED, "c": S.CANCELLED}
    assert changed[0].note == "cancelled by anna"
    assert queue.order(order(V.CANCEL, first)) == ()
    queue.move_on(first, S.FAILED)
    with pytest.raises(UsageError, match="cancel: g/a is failed"):
        queue.order(order(V.CANCEL, first))


def test_retry_keeps_the_run_and_ends_the_pause_before_the_next_try(queue: Queue) -> None:
    (only,) = queue.submit(submission("a"))
    finish(queue, only, S.FAILED, not_before=9e9, requeued=3, note="exit code 1", exit_code=1)
    (again,) = queue.order(order(V.RETRY, only))
    assert (again.state, again.not_before, again.requeued, again.note) == (S.QUEUED, None, 0, "")
    assert (again.run_id, again.attempts, again.exit_code) == ("20261120-100000-digits-0001", 1, 1)
    with pytest.raises(UsageError, match="retry: g/a is queued"):
        queue.order(order(V.RETRY, only))


def test_a_done_job_is_done_again_only_when_that_is_said(queue: Queue) -> None:
    first, _ = queue.submit(submission("a", job("b", "a")))
    finish(queue, first)
    with pytest.raises(UsageError):
        queue.order(order(V.RETRY, first))
    queue.order(order(V.RETRY, first, done=True))
    assert states(queue) == {"a": S.QUEUED, "b": S.BLOCKED}


def test_changes_that_somebody_accepts_do_not_hold_the_job_again(queue: Queue) -> None:
    (only,) = queue.submit(submission("a", if_changed=IfChanged.HOLD))
    queue.move_on(only, S.HELD, note="changed since submit: train.py")
    assert queue.submission_of(only).if_changed is IfChanged.HOLD
    queue.order(order(V.RESUME, only, accept_changes=True))
    assert queue.submission_of(only).if_changed is IfChanged.RUN


def test_edit_changes_what_holds_for_a_start(queue: Queue) -> None:
    first, second = queue.submit(submission("a", "b"))
    queue.order(order(V.EDIT, second, priority=3, not_before=50.0))
    queue.order(order(V.EDIT, group="g", max_parallel=2, hold_after=4))
    queue.order(order(V.EDIT, cpu_slots=7))
    assert names(queue) == ["b", "a"]
    assert queue.find(["g/b"])[0].not_before == 50.0
    assert (queue.groups()["g"].max_parallel, queue.groups()["g"].hold_after) == (2, 4)
    assert queue.settings().cpu_slots == 7
    for wrong in ({"priority": "high"}, {"nice": 3}, {"not_before": float("nan")}, {"priority": True}):
        with pytest.raises(UsageError, match="edit"):
            queue.order(order(V.EDIT, first, **wrong))
    with pytest.raises(UsageError, match="whole queue's"):
        queue.order(order(V.EDIT, group="g", cpu_slots=1))


def test_clear_takes_out_closed_groups_and_their_files_of_the_journal(queue: Queue) -> None:
    first, second = queue.submit(submission("a", "b"))
    queue.submit(submission("x", "y", group=DEFAULT_GROUP))
    finish(queue, first)
    with pytest.raises(UsageError, match="clear: g/b is queued"):
        queue.order(order(V.CLEAR, group="g"))
    queue.order(order(V.CANCEL, second))
    queue.order(order(V.CANCEL, *(each.id for each in queue.find(["x"]))))
    queue.order(order(V.EDIT, cpu_slots=3))
    queue.order(order(V.CLEAR))
    assert states(queue) == {"y": S.QUEUED}
    assert list(queue.groups()) == [DEFAULT_GROUP]
    queue.order(order(V.CANCEL, group=DEFAULT_GROUP))
    queue.order(order(V.CLEAR))
    assert len(os.listdir(f"{queue.directory}/journal")) == 1
    assert queue.settings().cpu_slots == 3
    assert queue.submit(submission("a")) == (5,), "an id is never given out twice"


def test_what_is_not_done_stays_while_a_job_that_stays_needs_it(queue: Queue) -> None:
    (base,) = queue.submit(submission("a"))
    queue.submit(submission(job("b", "g/a"), group="h"))
    finish(queue, base, S.FAILED)
    queue.order(order(V.CLEAR))
    assert states(queue) == {"a": S.FAILED, "b": S.BLOCKED}
    queue.order(order(V.RETRY, base))
    finish(queue, base)
    queue.order(order(V.CLEAR))
    assert states(queue) == {"b": S.QUEUED}


def test_words_name_jobs_groups_and_runs(queue: Queue) -> None:
    (plain,) = queue.submit(submission("solo", group=DEFAULT_GROUP))
    queue.submit(submission("a", "b"))
    finish(queue, plain, S.RUNNING)
    assert [each.label for each in queue.find(["solo", "g/b", "g/", "20261120-100000-digits-0001"])] == [
        *("solo", "g/b", "g/a")
    ]
    assert [each.name for each in queue.find(["g"])] == ["a", "b"]
    with pytest.raises(UsageError, match=r"no job, group or run 'g/c' .*near: g/"):
        queue.find(["g/c"])


@each("word", ["\udcff", "g/\udcff", "\udcff/", "\udcff/a"])
def test_a_word_that_is_no_text_names_nothing(queue: Queue, word: str) -> None:
    queue.submit(submission("a", group="g"))
    with pytest.raises(UsageError, match="there is no job"):
        queue.find([word])
    with pytest.raises(UsageError, match="there is no such"):
        queue.submit(submission(job("b", word)))


def test_durations_are_those_of_the_same_base_newest_first(queue: Queue) -> None:
    ids = queue.submit(submission("a", "b", "c"))
    finish(queue, ids[0], ended_at=5.0)
    finish(queue, ids[1], ended_at=9.0)
    assert queue.durations(ids[2]) == (8.0, 4.0)
    (other,) = queue.submit(submission("d", group="h"))
    assert queue.durations(other) == ()


def test_the_directory_is_private_and_must_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_QUEUE", str(tmp_path / "q"))
    with Queue() as queue:
        assert queue.directory == queue_directory() == str(tmp_path / "q")
        queue.submit(submission("a"))
        made = [f"{tmp_path}/q", queue.path, f"{tmp_path}/q/journal/0000000001.jsonl", f"{tmp_path}/q/queue.json"]
        assert [stat.S_IMODE(os.stat(path).st_mode) & 0o077 for path in made] == [0] * 4
    os.chmod(tmp_path / "q", 0o770)
    with pytest.raises(NotPermitted, match="mode 0770") as refused:
        Queue()
    assert refused.value.hint == f"chmod 700 {tmp_path}/q"
    os.chmod(tmp_path / "q", 0o1777)
    with pytest.raises(NotPermitted) as refused:
        Queue()
    assert "chmod" not in refused.value.hint, "closing a directory like /tmp would break the box"


def test_on_a_network_file_system_there_is_no_wal_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.queue.database.filesystem_of", lambda _: ("nfs4", "0:44"))
    with Queue(str(tmp_path / "q")) as queue:
        assert queue.notice is not None
        assert "network file system (nfs4)" in queue.notice
        queue.submit(submission("a"))
        assert not [name for name in os.listdir(queue.directory) if name.endswith("-wal")]
