"""A submission goes on where the link is lost, pauses with the same run id, and takes a refusal for what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from holdfast.core.job.job_hash import hash_job
from holdfast.desk.orders.build import Draft, draft_job
from holdfast.desk.orders.journal import Step, hold_order, list_orders, note_end, read_journal
from holdfast.desk.orders.submit import submit_draft
from holdfast.desk.runs import registry
from holdfast.desk.runs.pending import GIVE_UP_S, list_pending
from holdfast.host.clock import epoch_s, utc_now
from holdfast.model.errors import (
    CutOff,
    HoldfastError,
    NoInterpreter,
    PreflightFailed,
    Refused,
    StorageError,
    Taken,
    TooLate,
    Unreachable,
    UsageError,
)
from holdfast.model.job import JobSpec
from holdfast.model.order import RunRef
from holdfast.model.place import Place
from holdfast.model.record import replace
from holdfast.model.run import Ended, Outcome
from holdfast.model.sighting import Poll, Reach, Sighting
from holdfast.platforms.base import OrderResult, ProvenStart
from tests.desk.boxes import FACTS_OF_A_BOX

if TYPE_CHECKING:
    from holdfast.model.order import Order
    from holdfast.model.place import BoxFacts
    from holdfast.transfer.box import Box

pytestmark = pytest.mark.files

JOB = JobSpec("job", ("true",), ".")
OWN_ID = "20261120-104501-job-3fa2"


class FakeBox:
    """A place that is reached unless `error` is set."""

    place = Place("gpu1", host="gpu1", setup=("module load cuda",))

    def __init__(self, error: HoldfastError | None = None) -> None:
        self.error = error

    def ensure(self) -> BoxFacts:
        if self.error is not None:
            raise self.error
        return FACTS_OF_A_BOX


class FakePlatform:
    """Answers each order with the next of `errors`, then takes it."""

    kind = "fake"

    def __init__(self, *errors: HoldfastError) -> None:
        self.errors = list(errors)
        self.orders: list[Order] = []
        self.started: ProvenStart | None = None

    def submit(self, order: Order, *, prove_s: float | None = None) -> OrderResult:
        del prove_s
        self.orders.append(order)
        if self.errors:
            raise self.errors.pop(0)
        return OrderResult(RunRef("gpu1", order.run_id, f"/data/runs/{order.run_id}"), self.started)


def submit(
    platform: FakePlatform,
    box: FakeBox | None = None,
    told: list[str] | None = None,
    run_id: str | None = None,
    *,
    follow: bool = False,
) -> OrderResult:
    """Submit `JOB`, with two pauses."""
    return submit_draft(
        Draft(JOB, hash_job(JOB), None),
        cast("Box", box or FakeBox()),
        platform,
        argv=("holdfast", "run", "--token=hunter2hunter2"),
        run_id=run_id,
        prove_s=None if follow else 0.0,
        tell=(told if told is not None else []).append,
        pauses_s=(0.0, 0.0),
    )


def steps() -> list[tuple[Step, str]]:
    """The journal in short."""
    return [(entry.step, entry.run_id) for entry in read_journal("gpu1")]


def test_intent_and_sending_are_noted_before_the_answer() -> None:
    answer = submit(FakePlatform())
    run_id = answer.ref.run_id
    assert steps() == [(Step.INTENT, run_id), (Step.SENT, run_id), (Step.TAKEN, run_id)]


def test_the_order_has_what_the_place_configures_and_no_secret_of_the_command_line() -> None:
    platform = FakePlatform()
    submit(platform)
    (order,) = platform.orders
    assert order.setup == ("module load cuda",)
    assert order.bundle == FACTS_OF_A_BOX.bundle
    assert "hunter2" not in str(order.argv)
    assert order.by
    assert order.desk


@pytest.mark.requirement("XPORT-07")
def test_a_lost_link_is_no_answer_and_the_same_id_is_asked_again() -> None:
    platform, told = FakePlatform(CutOff("cut"), TooLate("late")), list[str]()
    answer = submit(platform, told=told)
    assert [order.run_id for order in platform.orders] == [answer.ref.run_id] * 3
    assert "cut; asking again for gpu1:" in told[0]


def test_a_place_that_hangs_is_not_asked_for_longer_than_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 16))  # as ssh's time limit for a connection lets each try last
    monkeypatch.setattr("holdfast.desk.orders.submit.time.monotonic", lambda: float(next(clock)))
    platform = FakePlatform(*(CutOff("cut") for _ in range(3)))
    with pytest.raises(CutOff, match="is not known"):
        submit(platform)
    assert len(platform.orders) == 2


def test_when_it_pauses_the_same_command_goes_on_with_the_same_run() -> None:
    with pytest.raises(CutOff) as caught:
        submit(FakePlatform(*(CutOff("cut") for _ in range(3))))
    (run_id,) = list_orders(read_journal("gpu1"))
    assert f"whether gpu1:{run_id} runs is not known" in str(caught.value)
    assert "the same command goes on with it" in caught.value.hint
    told: list[str] = []
    assert submit(FakePlatform(), told=told).ref.run_id == run_id
    assert told[0].startswith(f"going on with gpu1:{run_id}, which was ordered at ")
    assert submit(FakePlatform()).ref.run_id != run_id


def test_a_run_id_that_was_answered_is_not_said_to_be_unsent() -> None:
    told: list[str] = []
    run_id = submit(FakePlatform()).ref.run_id
    assert submit(FakePlatform(), told=told, run_id=run_id).ref.run_id == run_id
    assert told[0].startswith(f"gpu1:{run_id} was taken at ")
    assert told[0].endswith("asking for it again, which begins no second run")


def test_a_place_that_cannot_be_reached_is_said_at_once() -> None:
    platform = FakePlatform()
    with pytest.raises(Unreachable, match="was not sent yet"):
        submit(platform, FakeBox(Unreachable("no route")))
    assert platform.orders == []
    with pytest.raises(Refused):
        submit(platform, FakeBox(Refused("key")))
    (run_id,) = list_orders(read_journal("gpu1"))
    assert submit(platform).ref.run_id == run_id


def test_a_refusal_is_an_answer() -> None:
    with pytest.raises(Taken):
        submit(FakePlatform(Taken("another job")))
    assert [step for step, _ in steps()] == [Step.INTENT, Step.SENT, Step.REFUSED]


@pytest.mark.parametrize("refusal", [NoInterpreter("no Python"), PreflightFailed("the login shell says nothing")])
def test_a_refusal_of_another_try_is_no_answer_to_the_one_that_was_cut_off(refusal: HoldfastError) -> None:
    """What refuses it may not have looked for the run, which may be there."""
    told: list[str] = []
    with pytest.raises(type(refusal)):
        submit(FakePlatform(CutOff("cut"), refusal), told=told)
    (run_id,) = list_orders(read_journal("gpu1"))
    assert told[-1].startswith(f"an answer is missing: whether gpu1:{run_id} runs is not known; the same command asks")
    with pytest.raises(type(refusal)):
        submit(FakePlatform(refusal))
    assert [said for _, said, _ in pending()] == ["submitted, no answer yet"]
    assert submit(FakePlatform()).ref.run_id == run_id
    assert submit(FakePlatform()).ref.run_id != run_id


def test_that_the_id_is_another_jobs_is_an_answer_after_a_cut_too() -> None:
    """It was found there: the order is no run, and will be none."""
    with pytest.raises(Taken):
        submit(FakePlatform(CutOff("cut"), Taken("another job")), run_id=OWN_ID)
    assert steps()[-1] == (Step.REFUSED, OWN_ID)
    assert submit(FakePlatform()).ref.run_id != OWN_ID


def test_that_the_id_is_taken_says_nothing_of_the_order_that_was_cut_off_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(CutOff):
        submit(FakePlatform(*(CutOff("cut") for _ in range(3))), run_id=OWN_ID)
    with monkeypatch.context() as patch:
        patch.setattr("tests.desk.orders.test_submit.JOB", replace(JOB, command=("false",)))
        with pytest.raises(Taken):
            submit(FakePlatform(Taken("another job")), run_id=OWN_ID)
    assert submit(FakePlatform()).ref.run_id == OWN_ID


def test_what_refuses_to_go_on_with_a_run_begins_no_second_one() -> None:
    run_id = submit(FakePlatform(), follow=True).ref.run_id
    with pytest.raises(PreflightFailed):
        submit(FakePlatform(PreflightFailed("the login shell says nothing")), follow=True)
    assert submit(FakePlatform(), follow=True).ref.run_id == run_id
    assert steps()[-1] == (Step.FOLLOWED, run_id)


def test_a_run_whose_answer_is_missing_is_not_called_unordered_when_its_place_cannot_be_reached() -> None:
    with pytest.raises(CutOff):
        submit(FakePlatform(*(CutOff("cut") for _ in range(3))))
    with pytest.raises(Unreachable, match=r"whether gpu1:.* runs is not known"):
        submit(FakePlatform(), FakeBox(Unreachable("no route")))


def test_a_run_that_was_followed_to_its_end_is_not_gone_on_with_when_no_list_has_it_any_more() -> None:
    run_id = submit(FakePlatform(), follow=True).ref.run_id
    note_end("gpu1", run_id)
    assert steps()[-1] == (Step.TAKEN, run_id)
    written = steps()
    note_end("gpu1", run_id)
    note_end("gpu1", "20260101-000000-other-0000")
    assert steps() == written
    assert submit(FakePlatform(), follow=True).ref.run_id != run_id


def pending() -> list[tuple[str, str, str]]:
    """What a list says of orders that are no run."""
    return [(entry.run_id, said, entry.message) for entry, said in list_pending("gpu1", epoch_s())]


def test_what_a_place_did_not_take_is_shown_as_refused_with_its_words_until_it_is_taken() -> None:
    with pytest.raises(StorageError):
        submit(FakePlatform(StorageError("no space left", details={"place": "gpu1"})))
    (run_id,) = list_orders(read_journal("gpu1"))
    assert pending() == [(run_id, "refused", "no space left")]
    told: list[str] = []
    with pytest.raises(CutOff):
        submit(FakePlatform(*(CutOff("cut") for _ in range(3))), told=told)
    assert "was not taken then (no space left)" in told[0]
    assert pending() == [(run_id, "submitted, no answer yet", "")]
    # The order that was cut off may have come: what is answered to another try says nothing of it.
    with pytest.raises(StorageError):
        submit(FakePlatform(StorageError("no space left", details={"place": "gpu1"})))
    assert pending() == [(run_id, "submitted, no answer yet", "")]
    assert submit(FakePlatform()).ref.run_id == run_id
    assert pending() == []


def test_a_damaged_bundle_says_nothing_of_the_order_that_it_was_to_take() -> None:
    """It is found after the call that failed, which may have taken it."""
    with pytest.raises(StorageError):
        submit(FakePlatform(StorageError("holdfast's own files there were damaged")))
    assert [said for _, said, _ in pending()] == ["submitted, no answer yet"]


def test_a_refusal_is_shown_until_the_same_is_ordered_again() -> None:
    with pytest.raises(Taken):
        submit(FakePlatform(Taken("another job")))
    assert [(said, why) for _, said, why in pending()] == [("refused", "another job")]
    assert list_pending("gpu1", epoch_s() + 2 * GIVE_UP_S) == []
    submit(FakePlatform())
    assert pending() == []


def test_a_job_for_another_environment_of_the_place_is_another_order() -> None:
    with pytest.raises(CutOff):
        submit(FakePlatform(*(CutOff("cut") for _ in range(3))))
    (run_id,) = list_orders(read_journal("gpu1"))
    box = FakeBox()
    box.place = replace(box.place, setup=("module load other",))
    assert submit(FakePlatform(), box).ref.run_id != run_id
    assert submit(FakePlatform()).ref.run_id == run_id


def test_a_command_that_was_cut_off_while_it_followed_goes_on_with_its_run_until_its_end_was_seen() -> None:
    told: list[str] = []
    run_id = submit(FakePlatform(), follow=True).ref.run_id
    assert submit(FakePlatform(), told=told, follow=True).ref.run_id == run_id
    assert told[0].startswith(f"going on with gpu1:{run_id}, which this command began at ")
    with hold_order("gpu1", run_id):
        # It is followed at this moment: the same command typed beside it is a second run.
        beside = submit(FakePlatform(), follow=True).ref.run_id
    assert beside != run_id
    for ended in (run_id, beside):
        seen = Sighting("gpu1", ended, utc_now(), "agent", Reach.HERE, "succeeded", ended=True, exit_code=0)
        registry.record_poll(Poll("gpu1", utc_now(), {ended: seen}))
    assert submit(FakePlatform(), follow=True).ref.run_id not in {run_id, beside}


def test_a_job_that_ended_at_once_is_known_as_ended_and_what_was_seen_is_not_forgotten() -> None:
    platform = FakePlatform()
    end = Ended("2026-11-20T10:46:00.000Z", Outcome.FAILED, 3, "exit code 3")
    platform.started = ProvenStart(OWN_ID, f"/data/runs/{OWN_ID}", 1, end, 3)
    submit(platform, run_id=OWN_ID)
    (seen,) = registry.read_sightings("gpu1")
    assert (seen.condition, seen.ended, seen.exit_code) == ("failed", True, 3)
    # Asked for again: the place says only that it has it.
    submit(FakePlatform(), run_id=OWN_ID)
    assert registry.read_sightings("gpu1") == [seen]


@pytest.mark.requirement("XPORT-07")
def test_an_order_is_not_sent_again_below_another_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """There it is not found, and would begin once more."""
    with pytest.raises(CutOff):
        submit(FakePlatform(*[CutOff("cut")] * 3))
    moved = FakePlatform()
    with monkeypatch.context() as patched:
        patched.setattr(FakeBox, "ensure", lambda _: replace(FACTS_OF_A_BOX, root="/scratch/runs"))
        with pytest.raises(UsageError, match="ordered below /data/runs, and the runs root of gpu1 is /scratch/runs"):
            submit(moved)
    assert not moved.orders
    answer = submit(FakePlatform())
    assert {run_id for _, run_id in steps()} == {answer.ref.run_id}, "with the root as it was it goes on"


@pytest.mark.requirement("XPORT-11")
@pytest.mark.parametrize(
    "job",
    [
        JobSpec("job", ("python", "t.py", "--api-key", "c4n4ry51"), "/w"),
        JobSpec("job", ("true",), "/w", env={"DATA": "https://b.example/x?X-Amz-Signature=c4n4ry51c4n4ry51"}),
    ],
)
def test_XPORT_11_a_job_with_a_secret_is_refused_before_it_is_shown_or_sent(job: JobSpec) -> None:
    """Seen: the dry run printed it, and the box refused it when its code had been pushed."""
    with pytest.raises(UsageError, match="looks like a secret") as caught:
        draft_job(job, {}, send_code=False)
    assert "c4n4ry" not in str(caught.value)
    assert "holdfast secret push" in caught.value.hint
