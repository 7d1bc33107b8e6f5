"""The journal: an order without an answer is found again, an answered one never, and two commands are two orders."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.desk.orders import journal
from holdfast.desk.orders.journal import Step, claim_order, drop_unsent, list_orders, note_step, read_journal
from holdfast.host.files import files
from holdfast.model.errors import StorageError, UsageError
from holdfast.store.paths import state_directory

pytestmark = pytest.mark.process

JOB, TREE = "a" * 64, "0123456789abcdef"


def _journal() -> Path:
    return Path(state_directory(), "places", "gpu1", "journal.jsonl")


def _leave_unanswered(step: Step | None = None) -> str:
    """An order whose command ended without an answer; its run id."""
    with claim_order("gpu1", "job", JOB, TREE) as claim:
        if step is not None:
            note_step("gpu1", step, claim.run_id)
        return claim.run_id


@pytest.mark.parametrize("step", [None, Step.SENT])
def test_an_order_without_an_answer_is_gone_on_with(step: Step | None) -> None:
    run_id = _leave_unanswered(step)
    with claim_order("gpu1", "job", JOB, TREE) as claim:
        assert (claim.run_id, claim.begun is not None) == (run_id, True)
        note_step("gpu1", Step.TAKEN, run_id, run_dir="/runs/x")
    with claim_order("gpu1", "job", JOB, TREE) as claim:
        assert (claim.run_id != run_id, claim.begun) == (True, None)


def test_an_answered_order_is_never_gone_on_with() -> None:
    for step in (Step.TAKEN, Step.REFUSED):
        run_id = _leave_unanswered(step)
        with claim_order("gpu1", "job", JOB, TREE) as claim:
            assert claim.run_id != run_id
            note_step("gpu1", Step.TAKEN, claim.run_id)


def test_another_job_tree_or_place_is_another_order() -> None:
    run_id = _leave_unanswered()
    for place, job, tree in (("gpu1", "b" * 64, TREE), ("gpu1", JOB, ""), ("gpu2", JOB, TREE)):
        with claim_order(place, "job", job, tree) as claim:
            assert claim.run_id != run_id


def test_two_commands_at_once_are_two_orders() -> None:
    with claim_order("gpu1", "job", JOB, TREE) as first, claim_order("gpu1", "job", JOB, TREE) as second:
        assert first.run_id != second.run_id


def test_who_was_killed_holds_nothing() -> None:
    child = os.fork()
    if child == 0:
        with claim_order("gpu1", "job", JOB, TREE):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (run_id,) = list_orders(read_journal("gpu1"))
    with claim_order("gpu1", "job", JOB, TREE) as claim:
        assert claim.run_id == run_id


def test_a_named_order_keeps_its_name() -> None:
    run_id = "20261122-104501-job-3fa2"
    for begun in (None, Step.TAKEN):
        with claim_order("gpu1", "job", JOB, TREE, run_id=run_id) as claim:
            assert (claim.run_id, claim.begun and claim.begun.step) == (run_id, begun)
            note_step("gpu1", Step.TAKEN, run_id)
    with pytest.raises(UsageError, match="not a run id"), claim_order("gpu1", "job", JOB, TREE, run_id="../x"):
        pass


def test_a_torn_line_and_a_strange_one_are_no_steps() -> None:
    run_id = _leave_unanswered()
    whole = _journal().read_bytes()
    _journal().write_bytes(whole + b'{"step": "flown", "run_id": "x", "at": ""}\n[]\n\xff\n' + whole[:40])
    assert [entry.run_id for entry in read_journal("gpu1")] == [run_id]
    # What is written next is not spoiled by the torn end.
    note_step("gpu1", Step.TAKEN, run_id)
    assert list_orders(read_journal("gpu1"))[run_id].step is Step.TAKEN


def test_the_intent_is_on_the_disk_before_anything_is_done_and_private() -> None:
    with claim_order("gpu1", "job", JOB, TREE) as claim:
        assert read_journal("gpu1")[0].run_id == claim.run_id
        assert _journal().stat().st_mode & 0o077 == 0
        locks = list((_journal().parent / "orders").iterdir())
        assert [lock.name for lock in locks] == [f"{claim.run_id}.lock"]
        note_step("gpu1", Step.TAKEN, claim.run_id)
    assert not list((_journal().parent / "orders").iterdir())


def test_a_journal_that_cannot_be_written_sends_nothing() -> None:
    _leave_unanswered()
    _journal().unlink()
    _journal().mkdir()
    with pytest.raises(StorageError, match=r"journal\.jsonl"), claim_order("gpu1", "job", JOB, TREE):
        raise AssertionError


def test_a_refused_order_leaves_no_lock_behind() -> None:
    with suppress(UsageError), claim_order("gpu1", "job", JOB, TREE) as claim:
        note_step("gpu1", Step.REFUSED, claim.run_id)
        raise UsageError("the place refused it")
    assert not list((_journal().parent / "orders").iterdir())


def test_an_order_that_was_refused_and_is_sent_again_by_its_id_is_one_without_an_answer() -> None:
    run_id = "20261122-104501-job-3fa2"
    for step in (Step.REFUSED, Step.SENT):
        with claim_order("gpu1", "job", JOB, TREE, run_id=run_id):
            note_step("gpu1", step, run_id)
    entry = list_orders(read_journal("gpu1"))[run_id]
    assert (entry.step, entry.job_sha256, entry.tree) == (Step.SENT, JOB, TREE)
    with claim_order("gpu1", "job", JOB, TREE) as claim:
        assert claim.run_id == run_id


def test_only_an_order_that_never_left_is_dropped() -> None:
    with claim_order("gpu1", "job", JOB, TREE) as claim:
        assert not drop_unsent("gpu1", claim.run_id)  # a command is at it
    assert drop_unsent("gpu1", claim.run_id)
    with claim_order("gpu1", "job", JOB, TREE) as other:
        assert (other.begun, other.run_id != claim.run_id) == (None, True)
        note_step("gpu1", Step.SENT, other.run_id)
    assert not drop_unsent("gpu1", other.run_id)
    # One that was refused and is ordered again by its id has been sent before.
    note_step("gpu1", Step.REFUSED, other.run_id)
    with claim_order("gpu1", "job", JOB, TREE, run_id=other.run_id):
        pass
    assert not drop_unsent("gpu1", other.run_id)
    assert not drop_unsent("gpu1", "20260101-000000-none-0000")


def test_who_writes_waits_for_whoever_writes() -> None:
    """A line that a full disk takes in part is cut off again: with another one's behind it, both would go."""
    run_id = _leave_unanswered()
    writer = threading.Thread(target=note_step, args=("gpu1", Step.TAKEN, run_id))
    with files.alone_in(str(_journal().parent)):
        writer.start()
        writer.join(0.2)
        assert writer.is_alive()
    writer.join()
    assert list_orders(read_journal("gpu1"))[run_id].step is Step.TAKEN


def test_a_journal_that_has_grown_keeps_what_has_no_answer_and_the_newest_of_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "LARGEST_BYTES", 4000)
    monkeypatch.setattr(journal, "MOST_ANSWERED", 3)
    waiting = _leave_unanswered(Step.SENT)
    ids = []
    for number in range(20):
        with claim_order("gpu1", "job", f"{number:064d}", TREE) as claim:
            note_step("gpu1", Step.TAKEN, claim.run_id)
            ids.append(claim.run_id)
    orders = list_orders(read_journal("gpu1"))
    assert {waiting, *ids[-3:]} <= orders.keys()
    assert ids[0] not in orders
    assert _journal().stat().st_size < 5000
    with claim_order("gpu1", "job", JOB, TREE) as claim:
        assert claim.run_id == waiting
