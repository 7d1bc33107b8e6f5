"""The detectors over cases made of numbers: cards, neighbours, ranks, storage, and evidence that is not there."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.diagnosis.evidence import Answer, Reading
from holdfast.diagnosis.live.case import Case
from holdfast.diagnosis.live.detect.progress import Pace
from holdfast.diagnosis.live.detect.table import HANG_LADDER, SLOW_LADDER, run_detectors
from holdfast.diagnosis.live.gather.descriptors import WaitedOn
from holdfast.diagnosis.live.gather.flight import FlightFinding
from holdfast.diagnosis.live.gather.run_files import RunFacts
from holdfast.diagnosis.live.gather.target import LiveTarget, build_card_numbers
from holdfast.diagnosis.live.remedies import ACTIONS, action_for
from holdfast.diagnosis.python_stacks import Frame, StackDump
from holdfast.model.gpu import Card, GpuProcess, HolderKind
from holdfast.model.record import replace
from holdfast.model.verdict import HANGS, Confidence, LiveClass
from tests.diagnosis.live.cases import (
    FUTEX,
    MOVING,
    OVERDUE,
    POLL,
    READ,
    RECENT,
    RECV,
    SILENT,
    SLEEP,
    UNKNOWN,
    card,
    case,
    device,
    judge,
    pair,
    process,
    resting,
    thread,
    tree,
    working,
)
from tests.each import each

pytestmark = [pytest.mark.pure, pytest.mark.requirement("DIAG-03", "DIAG-06")]


# ------------------------------------------------------------------------------------------------------------- storage


@each(
    ("state", "wchan", "detector"),
    [
        ("D", "folio_wait_bit_common", "H1"),
        ("D", "percpu_rwsem_wait", "H1"),
        ("S", "request_wait_answer", "H2"),
        ("D", "request_wait_answer", "H2"),
        ("D", "rpc_wait_bit_killable", "H3"),
    ],
)
@each("progress", [OVERDUE, SILENT, UNKNOWN])
def test_a_task_that_never_woke_in_storage_names_the_place(
    state: str, wchan: str, detector: str, progress: Any
) -> None:
    place = WaitedOn(("/data/a.tar",), "/data", "nfs4", "server:/export")
    verdict = judge(case(tree(resting(10, wchan, READ, state=state)), progress, waited={10: place}))
    assert (verdict.kind, verdict.detector) == (LiveClass.STORAGE_WAIT, detector)
    assert "/data/a.tar on /data (nfs4, from server:/export)" in verdict.action


def test_a_short_wait_for_storage_is_normal() -> None:
    busy = process(10, pair(thread(10, "D", "folio_wait_bit_common", READ), ran=0.2, wakes=400))
    for progress in (MOVING, RECENT, SILENT, UNKNOWN):
        assert judge(case(tree(busy), progress)).kind is not LiveClass.STORAGE_WAIT


def test_a_long_wait_for_storage_is_no_hang_while_steps_are_made() -> None:
    assert judge(case(tree(resting(10, "io_schedule", READ, state="D")), MOVING)).kind not in HANGS


def test_a_worker_stuck_in_storage_is_found_behind_a_main_process_that_waits_for_it() -> None:
    main = resting(10, "anon_pipe_read", READ)
    worker = resting(11, "nfs_wait_bit_killable", READ, state="D", ppid=10)
    assert judge(case(tree(main, worker), OVERDUE)).kind is LiveClass.STORAGE_WAIT


def test_without_switch_counts_a_wait_for_storage_is_unknown_and_not_no() -> None:
    blind = thread(10, "D", "io_schedule", READ, voluntary=None, forced=None, unread={"switches": "why"})
    made = case(tree(process(10, (blind, blind))), OVERDUE)
    assert run_detectors(made)[2].answer is Answer.UNKNOWN
    assert judge(made).unknown


def test_a_frozen_group_is_paused_and_no_storage_wait() -> None:
    frozen = resting(10, "__refrigerator", READ, state="D")
    assert judge(case(tree(frozen), OVERDUE)).kind is LiveClass.PAUSED
    assert judge(case(tree(resting(10, "get_signal", READ)), OVERDUE, box={"frozen": True})).kind is LiveClass.PAUSED


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (f"/sys/fs/cgroup/libpod_parent/libpod-{'a' * 64}", "podman unpause aaaaaaaaaaaa, or `holdfast stop`"),
        (f"/sys/fs/cgroup/system.slice/docker-{'b' * 64}.scope", "docker unpause bbbbbbbbbbbb"),
        (f"/sys/fs/cgroup/freezer/docker/{'c' * 64}", "docker unpause cccccccccccc"),
        ("/sys/fs/cgroup/holdfast/run.1", "whoever froze it"),
    ],
)
def test_who_has_paused_a_container_is_named(group: str, words: str) -> None:
    made = case(tree(resting(10, "get_signal", READ)), OVERDUE, box={"frozen": True})
    made = replace(made, target=replace(made.target, group_dirs=("/sys/fs/cgroup/memory/x", group)))
    assert words in judge(made).action


def test_a_debugger_that_holds_the_process_is_named() -> None:
    held = resting(10, "ptrace_stop", READ, state="t", tracer=77)
    verdict = judge(case(tree(held), OVERDUE))
    assert verdict.kind is LiveClass.PAUSED
    assert "77" in verdict.action


def test_one_stopped_process_among_many_that_work_is_not_the_job() -> None:
    stopped = resting(11, "do_signal_stop", READ, state="T")
    assert judge(case(tree(working(10), stopped), SILENT)).kind is not LiveClass.PAUSED
    idle = resting(10, "do_sys_poll", POLL)
    verdict = judge(case(tree(idle, stopped), SILENT))
    assert (verdict.kind, verdict.confidence) == (LiveClass.PAUSED, Confidence.LIKELY)


def test_a_stopped_rank_is_named_while_the_others_spin_for_it() -> None:
    stopped = rank(1, resting(11, "do_signal_stop", READ, state="T"))
    spinning = rank(0, process(10, pair(thread(10, "R"), ran=1.0)))
    assert judge(case(tree(spinning, stopped), OVERDUE)).kind is LiveClass.PAUSED


# ----------------------------------------------------------------------------------------------------------- the three


def test_a_hang_needs_that_no_step_is_made() -> None:
    hung = [
        resting(10, "futex_do_wait", FUTEX),
        resting(10, "anon_pipe_read", READ),
        resting(10, "sk_wait_data", RECV),
        process(10, pair(thread(10, "R"), ran=1.0)),
    ]
    for facts in hung:
        assert judge(case(tree(facts), OVERDUE)).kind in HANGS
        assert judge(case(tree(facts), MOVING)).kind not in HANGS


def test_a_hang_needs_that_no_card_works() -> None:
    for facts in (resting(10, "futex_do_wait", FUTEX), resting(10, "do_sys_poll", POLL)):
        assert judge(case(tree(facts), OVERDUE, cards=[card()])).kind not in HANGS


def test_a_thread_that_works_elsewhere_is_no_deadlock() -> None:
    main = pair(thread(10, "S", "futex_do_wait", FUTEX))
    helper = pair(thread(11, "S", "sk_wait_data", RECV), ran=0.02, wakes=500)
    assert judge(case(tree(process(10, main, helper)), OVERDUE)).kind is not LiveClass.DEADLOCK


def writer(pid: int = 12, *, call: int = POLL, **change: Any) -> tuple[Any, ...]:
    """The process that writes the checkpoints of a training: it looks once a second whether that lives."""
    wchan = {POLL: "poll_schedule_timeout", FUTEX: "futex_do_wait", SLEEP: "hrtimer_nanosleep"}[call]
    return process(pid, pair(thread(pid, "S", wchan, call), **{"wakes": 5, **change}), ppid=10, name="holdfast-writer")


def test_the_writer_of_the_library_wakes_nobody_while_it_waits_for_its_training() -> None:
    main = resting(10, "futex_do_wait", FUTEX)
    for progress in (RECENT, SILENT, UNKNOWN):
        verdict = judge(case(tree(main, writer()), progress))
        assert (verdict.kind, verdict.confidence) == (LiveClass.DEADLOCK, Confidence.LIKELY)
        assert "holdfast-writer, pid 12, only waits for it" in verdict.evidence_for[1].text
    # One that writes, or waits for a file of another rank, answers by and by; and others by its name are somebody's.
    for busy in (writer(call=SLEEP, wakes=500), writer(ran=0.5, wakes=500), writer(call=SLEEP)):
        assert judge(case(tree(main, busy), RECENT)).kind is LiveClass.PROGRESSING
    other = process(12, pair(thread(12, "S", "poll_schedule_timeout", POLL), wakes=5), ppid=10)
    assert judge(case(tree(main, other), RECENT)).kind is LiveClass.PROGRESSING


def test_the_writer_of_the_library_is_not_what_a_training_is_judged_by() -> None:
    """A training that waits for a child has two: the one that it waits for does the job."""
    main, child = resting(10, "do_wait", 61), resting(11, "futex_do_wait", FUTEX, ppid=10)
    assert [p.pid for p in case(tree(main, writer(), child)).focus()] == [11]
    assert [p.pid for p in case(tree(main, writer())).focus()] == [10]


def quiet_case(**progress: Any) -> Case:
    """Nothing moved, and a thread in a poll may move it any time: a slow step, as far as anybody can tell."""
    quiet = process(10, pair(thread(10, "S", "futex_do_wait", FUTEX)), pair(thread(11, "S", "do_sys_poll", POLL)))
    return case(tree(quiet), replace(RECENT, age_s=19.0, usual_s=None, **progress))


def test_a_step_that_is_not_overdue_while_nothing_moves_is_not_told_to_get_on() -> None:
    made = quiet_case()
    verdict = judge(made)
    assert (verdict.kind, verdict.confidence) == (LiveClass.PROGRESSING, Confidence.POSSIBLE)
    assert verdict.action == (
        "it may be a slow step or a hang, its last one is 19 s old and nothing of it moved while it was looked at: it "
        "is overdue in 11 s (30 s after the last one); if no step has come by then, `holdfast diagnose run` once more"
    )
    assert any("no thread of it did any work in the 5 s between the looks" in c.text for c in verdict.evidence_for)
    frames = (Frame("train.py", 7, "loss"),)
    dump = StackDump(10, "", (frames,))
    told = judge(replace(made, dumps={10: (dump, dump)}))
    assert (told.kind, told.evidence_for[0].text) == (LiveClass.PROGRESSING, "both stacks are in loss (train.py:7)")


def test_what_moves_or_takes_no_longer_than_usual_gets_on() -> None:
    made = quiet_case()
    longer = replace(made, progress=replace(made.progress, usual_s=20.0))
    at_work = case(made.change, made.progress, cards=[card()])
    busy = case(tree(working()), made.progress)
    wakes = case(tree(process(10, pair(thread(10, "S", "do_sys_poll", POLL), wakes=300))), made.progress)
    for one in (longer, at_work, busy, wakes):
        verdict = judge(one)
        assert (verdict.kind, verdict.confidence) == (LiveClass.PROGRESSING, Confidence.LIKELY)
        assert verdict.action == "nothing: it gets on"
    # A phase that may take long says so itself.
    assert judge(quiet_case(starting=True, phase="eval")).kind is LiveClass.STARTING


def test_a_futex_with_a_timeout_proves_no_deadlock_without_a_heartbeat() -> None:
    timed = thread(10, "S", "futex_do_wait", FUTEX, arguments=(1, 0, 0, 4096, 0, 0))
    assert judge(case(tree(process(10, pair(timed))), UNKNOWN)).kind is LiveClass.UNCLEAR


def test_a_wait_that_the_kernel_does_not_tell_is_unknown() -> None:
    foreign = thread(10, "S", None, None, unread={"syscall": "Operation not permitted"})
    verdict = judge(case(tree(process(10, pair(foreign))), OVERDUE))
    assert verdict.kind is LiveClass.UNCLEAR
    assert any("does not tell" in clue.text for clue in verdict.unknown)


def test_a_busy_loop_that_mostly_waits_for_a_cpu_may_only_be_slow() -> None:
    starved = process(10, pair(thread(10, "R"), ran=0.1, queued=0.9))
    # Ten times slower: five intervals of 1 s become 50 s, and nothing explains 900 s.
    slow = replace(OVERDUE, age_s=45.0)
    assert judge(case(tree(starved), slow)).kind is not LiveClass.BUSY_NO_PROGRESS
    assert judge(case(tree(starved), OVERDUE)).kind is LiveClass.BUSY_NO_PROGRESS


def test_a_step_that_is_only_late_is_unclear_and_says_what_it_may_be() -> None:
    late = replace(RECENT, pace=Pace.LATE)
    quiet = process(10, pair(thread(10, "S", "futex_do_wait", FUTEX)), pair(thread(11, "S", "do_sys_poll", POLL)))
    verdict = judge(case(tree(quiet), late))
    assert verdict.kind is LiveClass.UNCLEAR
    assert "deadlock" in verdict.also
    assert any("late" in clue.text for clue in verdict.unknown)
    # Where nobody is left who could wake another, there is no pause to wait for.
    closed = resting(10, "futex_do_wait", FUTEX)
    alone = judge(case(tree(closed), late))
    assert alone.kind is LiveClass.DEADLOCK
    assert any(clue.text.startswith("the one thread of it and its children sleeps on") for clue in alone.evidence_for)


def test_an_interpreter_in_its_shutdown_hangs_at_exit() -> None:
    frames = (Frame("/usr/lib/python3.11/threading.py", 1590, "_shutdown"),)
    dump = StackDump(10, "", (frames,))
    verdict = judge(case(tree(resting(10, "futex_do_wait", FUTEX)), OVERDUE, dumps={10: (dump, dump)}))
    assert verdict.kind is LiveClass.EXIT_HANG


# --------------------------------------------------------------------------------------------------------------- ranks


def rank(number: int, facts: tuple[Any, ...]) -> tuple[Any, ...]:
    environment = Reading({"RANK": str(number), "WORLD_SIZE": "4"})
    return tuple(replace(look, environment=environment) for look in facts)


def ranks(odd: tuple[Any, ...], count: int = 4) -> list[tuple[Any, ...]]:
    """Ranks that wait, and one that does not; rank 2 is the odd one, or the last of fewer."""
    place = min(2, count - 1)
    made = [rank(i, odd if i == place else resting(20 + i, "futex_do_wait", FUTEX, ppid=9)) for i in range(count)]
    return [resting(9, "hrtimer_nanosleep", SLEEP), *made]


@pytest.mark.requirement("DIAG-11")
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    "odd",
    [
        resting(50, "hrtimer_nanosleep", SLEEP, ppid=9),
        process(50, pair(thread(50, "R"), ran=1.0), ppid=9),
    ],
    ids=["asleep", "busy"],
)
def test_the_rank_that_does_not_wait_with_the_others_is_named(odd: tuple[Any, ...], count: int) -> None:
    verdict = judge(case(tree(*ranks(odd, count)), OVERDUE))
    assert verdict.kind is LiveClass.COLLECTIVE_HANG
    assert f"rank {min(2, count - 1)} first" in verdict.action


@pytest.mark.requirement("DIAG-11")
def test_the_rank_that_is_a_step_behind_is_named() -> None:
    made = ranks(resting(50, "futex_do_wait", FUTEX, ppid=9))
    run = RunFacts(
        now_s=1e6, heartbeat={"step": 9}, rank_beats={str(i): {"step": 8 if i == 2 else 9} for i in (1, 2, 3)}
    )
    verdict = judge(case(tree(*made), OVERDUE, run=Reading(run)))
    assert verdict.kind is LiveClass.COLLECTIVE_HANG
    assert "rank 2 first" in verdict.action


@pytest.mark.requirement("DIAG-11")
def test_the_rank_with_another_stack_is_named() -> None:
    made = ranks(resting(50, "futex_do_wait", FUTEX, ppid=9))
    inside, outside = Frame("/x/torch/distributed_c10d.py", 3, "all_reduce"), Frame("/home/u/train.py", 7, "save")
    dumps = {20: inside, 21: inside, 50: outside, 23: inside}
    verdict = judge(
        case(tree(*made), OVERDUE, dumps={pid: (StackDump(pid, "", ((frame,),)),) for pid, frame in dumps.items()})
    )
    assert verdict.kind is LiveClass.COLLECTIVE_HANG
    assert "rank 2 first" in verdict.action
    assert any("save (/home/u/train.py:7)" in clue.text for clue in verdict.evidence_for)


@pytest.mark.requirement("DIAG-11")
def test_a_flight_recorder_finding_comes_first() -> None:
    finding = FlightFinding("0", 3, "nccl:all_reduce", "missing", (3,), (0, 1, 2))
    made = ranks(resting(50, "hrtimer_nanosleep", SLEEP, ppid=9))
    verdict = judge(case(tree(*made), OVERDUE, flight=Reading((finding,))))
    assert "rank 3 first" in verdict.action


def test_ranks_that_wait_for_one_that_computes_are_no_hang_without_a_heartbeat() -> None:
    made = ranks(process(50, pair(thread(50, "R"), ran=1.0), ppid=9))
    assert judge(case(tree(*made), UNKNOWN)).kind is LiveClass.UNCLEAR


def test_cards_that_spin_with_little_power_are_a_collective_that_waits() -> None:
    spin = card(power_w=110.0, memory_utilisation_pct=0.0)
    verdict = judge(case(tree(working()), OVERDUE, cards=[spin]))
    assert verdict.kind is LiveClass.COLLECTIVE_HANG
    assert judge(case(tree(working()), MOVING, cards=[spin])).kind is LiveClass.GPU_UNDERFED


# ---------------------------------------------------------------------------------------------------------------- slow


@pytest.mark.gotcha("U41")
@pytest.mark.requirement("DIAG-09")
def test_a_host_load_of_490_with_an_idle_group_is_a_neighbour_and_not_us() -> None:
    crowded = process(10, pair(thread(10, "R"), ran=0.3, queued=0.6))
    box = {"load": 490.0, "others_cores": 15.7}
    verdict = judge(case(tree(crowded), MOVING, box=box))
    assert verdict.kind is LiveClass.NOISY_NEIGHBOUR
    assert verdict.action.startswith("it is not you")
    assert (verdict.gotchas, verdict.confidence) == (("U41",), Confidence.LIKELY)
    unseen = judge(case(tree(crowded), SILENT, box=box))
    assert (unseen.kind, unseen.confidence) == (LiveClass.NOISY_NEIGHBOUR, Confidence.POSSIBLE)
    assert any("a loop without end looks the same" in clue.text for clue in unseen.evidence_for)
    assert "see first whether it gets on" in unseen.action
    assert "it is not you" not in unseen.action


def test_what_to_do_about_an_unclear_run_is_never_what_was_just_done() -> None:
    asleep = tree(resting(10, "hrtimer_nanosleep", SLEEP))
    first = judge(case(asleep, SILENT))
    assert (first.kind, "holdfast diagnose --deep run" in first.action) == (LiveClass.UNCLEAR, True)
    assert any("waits for a timer (sleep)" in clue.text for clue in first.evidence_for)
    deep = judge(case(asleep, SILENT, deep=True))
    assert "--deep" not in deep.action
    assert "holdfast stop run" in deep.action
    busy = judge(case(tree(process(10, pair(thread(10, "R"), ran=1.0))), SILENT))
    assert "if not, it is a loop without end" in busy.action
    dump = StackDump(10, "", ((Frame("train.py", 12, "wait"),),))
    for made in (case(asleep, SILENT, dumps={10: (dump, dump)}), case(asleep, OVERDUE, dumps={10: (dump, dump)})):
        stands = judge(made)
        assert stands.evidence_for[0].text == "both stacks are in wait (train.py:12)"
        assert stands.action.startswith("both stacks are in wait (train.py:12)")


def test_of_a_stall_that_its_supervisor_has_told_nobody_is_told_to_leave_it() -> None:
    asleep = tree(resting(10, "hrtimer_nanosleep", SLEEP))
    run = Reading(RunFacts(now_s=1e6, stalled="no step for 5m01s, the limit is 5m00s", stall_limit_s=300.0))
    dump = StackDump(10, "", ((Frame("train.py", 12, "wait"),),))
    for more in ({"dumps": {10: (dump, dump)}}, {"deep": True}, {}):
        told = judge(case(asleep, OVERDUE, run=run, **more))
        assert (told.kind, told.confidence) == (LiveClass.UNCLEAR, Confidence.POSSIBLE)
        assert any("has told that it stands still: no step for 5m01s" in clue.text for clue in told.evidence_for)
        assert "unless you know that it takes so long there, stop it (holdfast stop run)" in told.action
        assert ("let it" in told.action, "--deep" in told.action) == (False, not more)
    assert not any("stands still" in clue.text for clue in judge(case(asleep, RECENT, run=run)).evidence_for)


def test_an_action_names_the_target_and_leaves_no_placeholder() -> None:
    alone = judge(case(tree(resting(10, "futex_do_wait", FUTEX)), OVERDUE))
    assert (alone.kind, "holdfast diagnose --deep run`" in alone.action) == (LiveClass.DEADLOCK, True)
    assert "where there is one" in alone.action
    foreign = case(tree(resting(10, "futex_do_wait", FUTEX)), OVERDUE, target=LiveTarget("pid 10", ()))
    assert "holdfast diagnose --deep --pid 10`" in judge(foreign).action


@pytest.mark.requirement("DIAG-09")
def test_a_high_load_alone_says_nothing_about_us() -> None:
    box = {"load": 490.0, "others_cores": 15.0}
    assert judge(case(tree(working()), MOVING, box=box)).kind is LiveClass.PROGRESSING


def test_more_threads_than_cpus_is_oversubscription() -> None:
    storm = process(10, *(pair(thread(10 + i, "R"), ran=0.25, queued=0.75) for i in range(32)))
    verdict = judge(case(tree(storm), MOVING))
    assert verdict.kind is LiveClass.OVERSUBSCRIBED
    assert verdict.gotchas == ("U40",)


def test_a_quota_that_holds_its_threads_back_is_oversubscription() -> None:
    held = process(10, *(pair(thread(10 + i, "R"), ran=0.1, queued=0.75) for i in range(3)))
    verdict = judge(case(tree(held), MOVING, box={"allowed_cpus": 0.2, "throttled_share": 0.93}))
    assert verdict.kind is LiveClass.OVERSUBSCRIBED


def test_time_that_the_hypervisor_took_is_a_neighbour() -> None:
    crowded = process(10, pair(thread(10, "R"), ran=0.9, queued=0.1))
    assert judge(case(tree(crowded), MOVING, box={"steal_cores": 4.0})).kind is LiveClass.NOISY_NEIGHBOUR


def test_unreadable_waiting_times_are_named() -> None:
    blind = replace(thread(10, "R"), run_ns=None, queue_ns=None)
    verdict = judge(case(tree(process(10, (blind, replace(blind, cpu_ticks=300)))), MOVING))
    assert any("schedstat" in clue.text for clue in verdict.unknown)


def test_faults_and_pressure_together_are_thrashing() -> None:
    faulting = process(10, pair(thread(10, "D", "folio_wait_bit_common", READ), ran=0.1, wakes=900, faults=5000))
    short = {"memory_share": 0.99, "group_memory_full": 0.4}
    assert judge(case(tree(faulting), MOVING, box=short)).kind is LiveClass.THRASHING
    # A dataset that is mapped into memory pages in as well, and nothing is wrong with it.
    assert judge(case(tree(faulting), MOVING)).kind is not LiveClass.THRASHING


def test_a_card_held_back_by_heat_is_throttled() -> None:
    hot = card(throttle=("hw_thermal",), sm_clock_mhz=900.0)
    verdict = judge(case(tree(working()), MOVING, cards=[hot]))
    assert verdict.kind is LiveClass.GPU_THROTTLED
    assert "GPU-0" in verdict.action
    idle = card(throttle=("hw_thermal",), utilisation_pct=0.0)
    assert judge(case(tree(working()), MOVING, cards=[idle])).kind is not LiveClass.GPU_THROTTLED


def test_clocks_without_their_reasons_are_unread() -> None:
    verdict = judge(case(tree(working()), MOVING, cards=[card(throttle=None)]))
    assert verdict.kind is LiveClass.PROGRESSING
    assert any("clocks" in clue.text for clue in verdict.unknown)


def test_an_inventorys_card_becomes_numbers() -> None:
    process = GpuProcess(10, HolderKind.MANAGED, used_bytes=7)
    found = build_card_numbers(
        Card(0, "GPU-1", "H100", utilisation_pct=9, power_limit_w=700.0, processes=(process,)), frozenset({10})
    )
    assert (found.ours_present, found.power_limit_w, found.throttle) == (True, 700.0, None)
    capped = Card(0, "GPU-1", "H100", throttle=("sw_power_cap", "hw_thermal"), clock_reasons=0x44)
    assert build_card_numbers(capped, frozenset()).throttle == ("hw_thermal",)
    hidden = GpuProcess(4242, HolderKind.OTHER_NAMESPACE)
    assert build_card_numbers(Card(0, "GPU-1", "H100", processes=(hidden,)), frozenset({10})).ours_present is None
    assert build_card_numbers(Card(0, "GPU-1", "H100", processes=None), frozenset({10})).ours_present is None


@pytest.mark.gotcha("U38")
def test_an_idle_card_beside_work_on_the_cpu_is_slow_and_never_dead() -> None:
    verdict = judge(case(tree(working(files=device())), MOVING, cards=[card(utilisation_pct=0.0, power_w=60.0)]))
    assert verdict.kind is LiveClass.CPU_BOUND
    assert verdict.gotchas == ("U38",)


def test_a_run_that_never_touched_its_card_fell_back_to_the_cpu() -> None:
    burning = process(10, pair(thread(10, "R"), ran=1.0), environment=Reading({"CUDA_VISIBLE_DEVICES": "-1"}))
    bare = card(utilisation_pct=0.0, power_w=60.0, ours_present=False)
    verdict = judge(case(tree(burning), MOVING, cards=[bare]))
    assert verdict.kind is LiveClass.CPU_FALLBACK
    young = judge(case(tree(burning), MOVING, cards=[bare], job_age_s=60.0))
    assert young.kind is not LiveClass.CPU_FALLBACK


@pytest.mark.parametrize("present", [True, None])
def test_a_card_that_may_hold_our_process_is_no_fall_back(present: bool | None) -> None:
    burning = process(10, pair(thread(10, "R"), ran=1.0))
    bare = card(utilisation_pct=0.0, ours_present=present)
    assert judge(case(tree(burning), MOVING, cards=[bare])).kind is not LiveClass.CPU_FALLBACK


def test_files_that_cannot_be_listed_leave_the_fall_back_unknown() -> None:
    burning = process(10, pair(thread(10, "R"), ran=1.0), files=Reading(unread="Permission denied"))
    bare = card(utilisation_pct=0.0, ours_present=False)
    verdict = judge(case(tree(burning), MOVING, cards=[bare]))
    assert verdict.kind is not LiveClass.CPU_FALLBACK
    assert any("uses a card is not readable" in clue.text for clue in verdict.unknown)


@pytest.mark.gotcha("U24")
def test_a_main_process_that_waits_for_busy_workers_is_bound_by_its_loader() -> None:
    main = process(10, pair(thread(10, "S", "anon_pipe_read", READ), ran=0.1, wakes=300), files=device())
    workers = [process(11 + i, pair(thread(11 + i, "R"), ran=0.95), ppid=10) for i in range(4)]
    verdict = judge(case(tree(main, *workers), MOVING, cards=[card(utilisation_pct=30.0)]))
    assert (verdict.kind, verdict.gotchas) == (LiveClass.LOADER_BOUND, ("U24",))
    full = judge(case(tree(main, *workers), MOVING, cards=[card()]))
    assert full.kind is LiveClass.PROGRESSING


def test_a_crowd_beside_a_starved_loader_is_blamed_only_where_its_workers_get_no_cpu() -> None:
    main = process(10, pair(thread(10, "S", "anon_pipe_read", READ), ran=0.05, wakes=300))
    box = {"others_cores": 15.0}
    for ran, kind in ((0.5, LiveClass.LOADER_BOUND), (0.2, LiveClass.NOISY_NEIGHBOUR)):
        workers = [process(11 + i, pair(thread(11 + i, "R"), ran=ran, queued=1 - ran), ppid=10) for i in range(2)]
        assert judge(case(tree(main, *workers), MOVING, box=box)).kind is kind


@pytest.mark.gotcha("U8")
def test_workers_that_wait_for_slow_storage_point_at_the_storage() -> None:
    main = process(10, pair(thread(10, "S", "do_sys_poll", POLL), ran=0.1, wakes=300))
    workers = [
        process(11 + i, pair(thread(11 + i, "D", "nfs_wait_bit_killable", READ), ran=0.05, wakes=90), ppid=10)
        for i in range(4)
    ]
    verdict = judge(case(tree(main, *workers), MOVING))
    assert (verdict.kind, verdict.gotchas) == (LiveClass.LOADER_BOUND, ("U8",))


def test_a_rank_slower_than_most_is_named() -> None:
    made = [rank(i, working(20 + i, ppid=9)) for i in range(4)]
    beats: dict[str, dict[str, object]] = {str(i): {"steps_per_s": 4.0 if i == 2 else 10.0} for i in (1, 2, 3)}
    run = RunFacts(now_s=1e6, heartbeat={"steps_per_s": 10.0}, rank_beats=beats)
    verdict = judge(case(tree(*made), MOVING, run=Reading(run)))
    assert verdict.kind is LiveClass.STRAGGLER
    assert "rank 2" in verdict.action


@pytest.mark.parametrize(("rate", "kind"), [(6.0, LiveClass.SLOWER_THAN_BEFORE), (8.0, LiveClass.PROGRESSING)])
def test_a_run_slower_than_its_own_history_is_told(rate: float, kind: LiveClass) -> None:
    target = LiveTarget("run", (), ours=True, usual_steps_per_s=10.0)
    run = RunFacts(now_s=1e6, heartbeat={"steps_per_s": rate})
    assert judge(case(tree(working()), MOVING, target=target, run=Reading(run))).kind is kind


# ------------------------------------------------------------------------------------------------- the fold, the table


def blind_case(progress: Any) -> Case:
    """Nothing but the state letter is readable."""
    blind = replace(
        thread(10), run_ns=None, queue_ns=None, voluntary=None, forced=None, unread={"syscall": "Permission denied"}
    )
    unread: Reading[Any] = Reading(unread="Permission denied")
    facts = process(10, (blind, blind), io=unread, files=unread, command=unread, environment=unread, own=False)
    return case(tree(facts), progress, run=unread, target=LiveTarget("run", (), cards=1))


@pytest.mark.parametrize("progress", [OVERDUE, SILENT, UNKNOWN])
def test_evidence_that_cannot_be_read_never_makes_a_run_well(progress: Any) -> None:
    verdict = judge(blind_case(progress))
    assert verdict.kind is LiveClass.UNCLEAR
    assert len(verdict.unknown) >= 3


def test_a_step_between_the_looks_makes_a_run_well_whatever_else_is_unreadable() -> None:
    verdict = judge(blind_case(MOVING))
    assert verdict.kind is LiveClass.PROGRESSING
    assert verdict.confidence is Confidence.CERTAIN
    assert verdict.unknown


def test_a_run_in_a_long_phase_is_starting() -> None:
    phase = replace(RECENT, starting=True, phase="compile")
    assert judge(case(tree(working()), phase)).kind is LiveClass.STARTING


def test_other_classes_that_something_speaks_for_are_listed() -> None:
    stuck = resting(10, "io_schedule", READ, state="D")
    waiter = resting(11, "anon_pipe_read", READ)
    verdict = judge(case(tree(stuck, waiter), OVERDUE))
    assert verdict.kind is LiveClass.STORAGE_WAIT
    assert "waiting_for_child" in verdict.also


def test_a_worker_that_has_ended_is_named_to_whoever_waits_for_it() -> None:
    """Its end of the pipe is often open in the waiting process too, so no end of file comes."""
    main, worker = resting(10, "anon_pipe_read", READ), resting(11, "do_exit", READ, state="Z", ppid=10)
    verdict = judge(case(tree(main, worker), OVERDUE))
    assert verdict.kind is LiveClass.WAITING_FOR_CHILD
    assert "pid 11 (python), a child of it that has ended" in verdict.action


def test_every_class_has_a_detector_or_is_what_is_left_and_one_action() -> None:
    detected = {row.kind for row in (*HANG_LADDER, *SLOW_LADDER)}
    left = {LiveClass.PROGRESSING, LiveClass.STARTING, LiveClass.UNCLEAR}
    assert detected | left == set(LiveClass)
    assert not detected & left
    assert set(ACTIONS) == set(LiveClass)
    for kind in LiveClass:
        assert "{" not in action_for(kind, {})


@pytest.mark.parametrize("progress", [MOVING, OVERDUE, UNKNOWN])
def test_every_answer_carries_the_id_and_class_of_its_row(progress: Any) -> None:
    rows = (*HANG_LADDER, *SLOW_LADDER)
    for facts in (working(), resting(10, "futex_do_wait", FUTEX), resting(10, "io_schedule", READ, state="D")):
        for row, found in zip(rows, run_detectors(case(tree(facts), progress)), strict=True):
            assert found.detector in row.ids.split()
            assert found.kind is row.kind


def test_every_hang_class_is_in_the_ladder_of_hangs() -> None:
    assert {row.kind for row in HANG_LADDER} == HANGS
