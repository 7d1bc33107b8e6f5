"""What starts next, and why the rest waits: the decision alone, without a queue."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.queue.choose import (
    AHEAD,
    NEEDS_A_PERSON,
    ActiveJob,
    JobPhase,
    QueueState,
    WaitKind,
    choose_jobs,
    explain_wait,
    order_by_cost,
)
from holdfast.model.queue import ACTIVE_STATES, GroupKind, JobGroup, JobState, QueuedJob, QueueSettings
from holdfast.model.record import replace
from tests.budget import examples
from tests.each import each

pytestmark = pytest.mark.pure

NOW = 1_000_000.0
NUMBERS = itertools.count(1)


def job(name: str = "", **fields: object) -> QueuedJob:
    number = next(NUMBERS)
    given_fields = {"state": JobState.QUEUED, "group": "default", "place": float(number), **fields}
    return QueuedJob(id=number, key=f"k{number}", name=name or f"c{number}", **given_fields)  # type: ignore[arg-type]


def situation(*active: ActiveJob, groups: tuple[JobGroup, ...] = (), **fields: object) -> QueueState:
    known = {group.name: group for group in groups}
    base = QueueState(active, known, QueueSettings("q"), cpu_slots=2, now=NOW)
    return replace(base, **fields)  # type: ignore[arg-type]


def at_work(name: str = "", **fields: object) -> ActiveJob:
    return ActiveJob(job(name, **{"state": JobState.RUNNING, **fields}), JobPhase.AT_WORK)


def names(jobs: tuple[QueuedJob, ...]) -> list[str]:
    return [item.name for item in jobs]


def test_jobs_start_in_their_order_until_the_slots_are_used() -> None:
    assert names(choose_jobs([job("a"), job("b"), job("c")], situation())) == ["a", "b"]
    assert names(choose_jobs([job("a"), job("b")], situation(at_work()))) == ["a"]
    assert choose_jobs([job("a")], situation(at_work(), at_work())) == ()


def test_a_job_with_many_slots_is_not_overtaken_and_gets_all_there_are_when_it_wants_more() -> None:
    wide, small = job("wide", slots=2), job("small")
    assert choose_jobs([wide, small], situation(at_work())) == ()
    assert names(choose_jobs([wide, small], situation())) == ["wide"]
    assert names(choose_jobs([job("huge", slots=64), small], situation())) == ["huge"]
    assert choose_jobs([small], situation(at_work(slots=64))) == ()


def test_jobs_for_cards_take_no_cpu_slot_and_one_stands_in_line_ahead() -> None:
    card = [job(f"g{n}", cards=1) for n in range(4)]
    assert names(choose_jobs([*card, job("cpu")], situation())) == ["g0", "g1", "cpu"]
    blocked = ActiveJob(job(cards=1, state=JobState.RUNNING), JobPhase.IN_LINE)
    assert choose_jobs(card, situation(blocked)) == ()
    coming = ActiveJob(job(cards=1, state=JobState.RUNNING), JobPhase.COMING)
    assert names(choose_jobs(card, situation(coming))) == ["g0"]
    assert len(choose_jobs(card, situation(at_work(cards=1), at_work(cards=1)))) == AHEAD


def test_quiet_hours_keep_jobs_for_cards_only() -> None:
    found = choose_jobs([job("g", cards=1), job("cpu")], situation(cards_closed="it is 12:00; ..."))
    assert names(found) == ["cpu"]


@pytest.mark.requirement("QUEUE-20")
@pytest.mark.parametrize("stop", [QueueSettings("q", paused=True), QueueSettings("q", draining=True)])
def test_nothing_starts_while_the_queue_is_paused_or_drained(stop: QueueSettings) -> None:
    assert choose_jobs([job()], situation(settings=stop)) == ()


@pytest.mark.parametrize(
    "group", [JobGroup("g", paused=True), JobGroup("g", held="3 failed"), JobGroup("g", max_parallel=0)]
)
def test_a_closed_group_lets_the_others_pass(group: JobGroup) -> None:
    assert names(choose_jobs([job("x", group="g"), job("y")], situation(groups=(group,)))) == ["y"]


def test_a_group_has_no_more_jobs_at_work_than_it_may() -> None:
    group = JobGroup("g", max_parallel=2)
    active = at_work(group="g", cards=1)
    found = choose_jobs([job("a", group="g"), job("b", group="g"), job("c")], situation(active, groups=(group,)))
    assert names(found) == ["a", "c"]


def test_a_job_before_its_time_or_with_open_needs_does_not_start() -> None:
    assert choose_jobs([job(not_before=NOW + 1), job(open_needs=1)], situation()) == ()
    assert len(choose_jobs([job(not_before=NOW - 1)], situation())) == 1


@pytest.mark.requirement("QUEUE-18")
def test_QUEUE_18_a_sweep_with_known_costs_ends_within_a_fifth_of_the_best() -> None:
    sweep = JobGroup("s", GroupKind.SWEEP)
    waiting = [job(group="s", expected_s=cost, slots=1) for cost in (20.0, 50.0, 20.0, 20.0, 50.0)]
    now, ends, running = 0.0, 0.0, list[tuple[float, QueuedJob]]()
    while waiting or running:
        active = tuple(ActiveJob(replace(item, state=JobState.RUNNING), JobPhase.AT_WORK) for _, item in running)
        for item in choose_jobs(waiting, situation(*active, groups=(sweep,))):
            waiting.remove(item)
            running.append((now + (item.expected_s or 0.0), item))
        running.sort(key=lambda pair: pair[0])
        now, _ = running.pop(0)
        ends = max(ends, now)
    best = 90.0
    assert ends <= 1.2 * best


def test_only_jobs_of_one_sweep_and_one_priority_are_ordered_by_cost() -> None:
    groups = {"s": JobGroup("s", GroupKind.SWEEP), "p": JobGroup("p")}
    jobs = [
        job("s1", group="s", expected_s=1.0),
        job("p1", group="p", expected_s=9.0),
        job("s2", group="s", expected_s=5.0),
        job("s3", group="s"),
        job("s4", group="s", expected_s=7.0, priority=-1),
    ]
    assert names(tuple(order_by_cost(jobs, groups))) == ["s2", "p1", "s1", "s3", "s4"]


JOBS = st.lists(
    st.builds(
        lambda group, cards, slots, priority, cost: job(
            group=group, cards=cards, slots=slots, priority=priority, expected_s=cost
        ),
        st.sampled_from(["default", "g", "s"]),
        st.sampled_from([0, 0, 1, 2]),
        st.integers(1, 5),
        st.integers(-1, 1),
        st.one_of(st.none(), st.floats(0, 100)),
    ),
    max_size=12,
)
ACTIVE = st.lists(
    st.builds(
        lambda group, cards, slots, standing: ActiveJob(
            job(group=group, cards=cards, slots=slots, state=JobState.RUNNING), standing
        ),
        st.sampled_from(["default", "g", "s"]),
        st.sampled_from([0, 1]),
        st.integers(1, 3),
        st.sampled_from(list(JobPhase)),
    ),
    max_size=5,
)


@given(JOBS, ACTIVE, st.integers(1, 6), st.integers(0, 3))
def test_no_choice_takes_more_than_there_is(
    jobs: list[QueuedJob], active: list[ActiveJob], slots: int, limit: int
) -> None:
    groups = (JobGroup("g", max_parallel=limit), JobGroup("s", GroupKind.SWEEP))
    found = situation(*active, groups=groups, cpu_slots=slots)
    chosen = choose_jobs(jobs, found)
    ids = [item.id for item in chosen]
    assert len(set(ids)) == len(ids)
    assert set(ids) <= {item.id for item in jobs}
    wanted = sum(min(item.slots, slots) for item in chosen if not item.cards)
    assert wanted <= found.free_slots
    assert sum(bool(item.cards) for item in chosen) <= found.card_room
    assert sum(item.group == "g" for item in chosen) + found.count_active("g") <= max(limit, found.count_active("g"))


@given(JOBS, st.integers(1, 4))
@settings(max_examples=examples(50))
def test_every_job_starts_in_the_end_whatever_its_priority(jobs: list[QueuedJob], slots: int) -> None:
    waiting = sorted(jobs, key=lambda item: (-item.priority, item.place))
    groups = (JobGroup("s", GroupKind.SWEEP, max_parallel=1),)
    for _ in range(len(jobs)):
        chosen = choose_jobs(waiting, situation(groups=groups, cpu_slots=slots))
        waiting = [item for item in waiting if item not in chosen]
    assert waiting == []


@given(JOBS, ACTIVE, st.sampled_from(list(JobState)), st.booleans())
def test_a_waiting_job_has_a_reason_and_no_other_has_one(
    jobs: list[QueuedJob], active: list[ActiveJob], state: JobState, paused: bool
) -> None:
    around = situation(*active, settings=QueueSettings("q", paused=paused))
    for item in jobs:
        reasons = explain_wait(replace(item, state=state), around)
        waits = state in {JobState.BLOCKED, JobState.QUEUED, JobState.HELD}
        assert bool(reasons) is waits
        assert all(reason.words for reason in reasons)


@given(JOBS, ACTIVE)
def test_a_job_that_is_said_to_be_next_is_chosen_when_it_is_alone(
    jobs: list[QueuedJob], active: list[ActiveJob]
) -> None:
    around = situation(*active)
    for item in jobs:
        is_next = explain_wait(item, around)[0].why is WaitKind.NEXT
        assert (choose_jobs([item], around) == (item,)) is is_next


def test_every_reason_is_told_with_who_is_in_the_way() -> None:
    busy = [at_work(name="a", group="g"), at_work(name="b")]
    groups = (JobGroup("g", max_parallel=1, paused=True, held="2 jobs in a row failed"),)
    around = situation(*busy, groups=groups, settings=QueueSettings("q", paused=True, draining=True))
    reasons = explain_wait(job(group="g", not_before=NOW + 60), around, behind=3, say_time=lambda _: "20:00")
    text = "\n".join(reason.words for reason in reasons)
    for words in (
        "the whole queue is paused",
        "being drained",
        "group g is paused",
        "group g stopped by itself: 2 jobs in a row failed",
        "group g is full: 1 of 1 at work (g/a)",
        "2 of 2 in use by g/a, b",
        "stands behind 3 jobs",
        "not before 20:00",
    ):
        assert words in text
    assert reasons[0].why is WaitKind.QUEUE_PAUSED


def test_needs_are_named_and_a_failed_one_is_told_apart() -> None:
    failed = job("up", state=JobState.FAILED, note="exit code 3")
    open_need = job("other", state=JobState.RUNNING)
    blocked = job(state=JobState.BLOCKED, open_needs=2)
    reasons = explain_wait(blocked, situation(), needs=[open_need, failed])
    assert [reason.why for reason in reasons] == [WaitKind.NEEDS_FAILED, WaitKind.NEEDS]
    assert reasons[0].words == "needs up, which is failed (exit code 3)"
    assert [reason.way for reason in reasons] == ["holdfast queue retry up", ""]
    assert explain_wait(blocked, situation())[0].words == "needs 2 jobs proven done first"


WITHOUT = "holdfast queue cancel train, then submit it again without --after"


@each(
    ("facts", "way"),
    [
        ({"state": JobState.CANCELLED}, f"holdfast queue retry up; without it: {WITHOUT}"),
        ({"state": JobState.FAILED, "failure": "bug"}, "holdfast queue retry up (once its cause is mended)"),
        ({"state": JobState.FAILED, "failure": "preempted"}, "holdfast queue retry up"),
        ({"state": JobState.HELD, "note": "train.py changed"}, "holdfast queue resume up"),
        ({"state": JobState.HELD, "note": "it may be at work: `holdfast queue retry up --force`"}, ""),
        (
            {"state": JobState.FAILED, "outcome": "succeeded", "failure": "suspicious_finish"},
            "holdfast queue retry up (or, as it is: holdfast queue accept up)",
        ),
    ],
)
def test_the_command_for_what_is_needed_is_whole(facts: dict[str, object], way: str) -> None:
    blocked = job("train", state=JobState.BLOCKED, open_needs=1)
    assert explain_wait(blocked, situation(), needs=[job("up", **facts)])[0].way == way


def test_without_one_of_several_needs_the_others_stay() -> None:
    gone = job("up", state=JobState.CANCELLED)
    for facts, how in (
        ({"open_needs": 2}, "submit it again with --after the others"),
        ({"open_needs": 1, "run_id": "x"}, "submit it under another name without --after"),
    ):
        blocked = job("train", state=JobState.BLOCKED, **facts)
        way = explain_wait(blocked, situation(), needs=[gone])[0].way
        assert way == f"holdfast queue retry up; without it: holdfast queue cancel train, then {how}"


def test_what_blocks_a_need_is_let_go_itself() -> None:
    blocked = job("train", state=JobState.BLOCKED, open_needs=1)
    reasons = explain_wait(
        blocked,
        situation(),
        needs=[job("up", state=JobState.BLOCKED)],
        behind_needs=[job("first", state=JobState.CANCELLED)],
    )
    assert [reason.words for reason in reasons] == ["needs first, which is cancelled", "needs up, which is blocked"]
    assert [reason.way for reason in reasons] == ["holdfast queue retry first", ""]


def test_a_held_job_says_why_and_an_active_one_does_not_wait() -> None:
    assert (
        explain_wait(job(state=JobState.HELD, note="train.py changed"), situation())[0].words
        == "held: train.py changed"
    )
    for state in ACTIVE_STATES:
        assert explain_wait(job(state=state), situation()) == ()


def test_who_stands_in_the_line_for_cards_is_named() -> None:
    ahead = ActiveJob(job("first", cards=1, state=JobState.RUNNING), JobPhase.IN_LINE)
    (reason,) = explain_wait(job(cards=1), situation(ahead))
    assert reason.words == "first stands in the box's line for cards first"
    assert explain_wait(job(cards=1), situation(cards_closed="it is noon"))[0].why is WaitKind.HOURS
    assert explain_wait(job(), situation(stopped="the disk is full"))[0].words == "the disk is full"


def test_without_any_cpu_slot_a_person_is_needed_and_nobody_is_named_who_uses_them() -> None:
    reasons = explain_wait(job(), replace(situation(), cpu_slots=0))
    assert reasons[0].why is WaitKind.NO_SLOTS
    assert reasons[0].why in NEEDS_A_PERSON
    assert "in use by" not in reasons[0].words
