"""The patrol's decision table: each row with its evidence, and two tests that do not lean on each other."""

from __future__ import annotations

import pytest

from holdfast.core.patrol.evidence import LIMITS, AlarmEvidence, CompletionEvidence, DiskReading, RunStatus, learn_pace
from holdfast.core.patrol.patrol import ALARMS, ENDINGS, RECENT_S, judge_run, limit_s, summarise_runs
from holdfast.model.record import replace
from holdfast.model.scheduler import Phase, SchedulerReport
from tests.each import each

pytestmark = pytest.mark.pure

RUN = "20261120-100000-digits-0a1b"
LIVE = CompletionEvidence(phase="running", supervisor=True, job=True)
GONE = CompletionEvidence(phase="running", supervisor=False, job=False)
FAR = CompletionEvidence(phase="running", here=False, host="n1", scheduler="slurm")
WELL = AlarmEvidence(
    progress="step",
    progress_age_s=3.0,
    usual_s=30.0,
    phase="train",
    step=100,
    cards=1,
    card_pct=97,
    cpu_share=1.0,
    sample_age_s=10.0,
    sample_every_s=30.0,
    memory_share=0.4,
    places=(DiskReading("/data", 500 << 30, 0.4, 0.2),),
)

ENDING_CASES: dict[str, tuple[CompletionEvidence, RunStatus, bool]] = {
    "newer": (replace(LIVE, newer_schema=2), RunStatus.UNKNOWN, True),
    "incomplete": (CompletionEvidence(incomplete="run.json does not exist"), RunStatus.UNKNOWN, True),
    "queued": (
        replace(FAR, phase="created", word=SchedulerReport("7", Phase.WAITING, "PENDING", evidence="job 7 waits")),
        RunStatus.WAITING,
        False,
    ),
    "placed": (
        replace(FAR, word=SchedulerReport("7", Phase.RUNNING, "RUNNING", evidence="job 7 runs")),
        RunStatus.RUNNING,
        False,
    ),
    "unrecorded": (
        replace(FAR, word=SchedulerReport("7", Phase.OVER, "FAILED", evidence="job 7 is over")),
        RunStatus.DEAD,
        True,
    ),
    "unheard": (FAR, RunStatus.UNKNOWN, False),
    "outside": (replace(LIVE, here=False, outside=True, supervisor=None, job=None), RunStatus.UNKNOWN, False),
    "elsewhere": (replace(LIVE, here=False, host="b17", supervisor=None, job=None), RunStatus.UNKNOWN, False),
    "untold": (
        CompletionEvidence(phase="ended", outcome="succeeded", untold="slack: HTTP 404"),
        RunStatus.FINISHED,
        True,
    ),
    "succeeded": (
        CompletionEvidence(phase="ended", outcome="succeeded", evidence="exit code 0"),
        RunStatus.FINISHED,
        False,
    ),
    "fast": (
        CompletionEvidence(phase="ended", outcome="succeeded", fast="duration: 2 s: fast"),
        RunStatus.FINISHED,
        True,
    ),
    "asked": (
        CompletionEvidence(phase="ended", outcome="stopped", evidence="asked to stop by anna"),
        RunStatus.FINISHED,
        False,
    ),
    "refused": (
        CompletionEvidence(phase="ended", outcome="failed", failure_class="refused", refused=True),
        RunStatus.FINISHED,
        False,
    ),
    "failed": (CompletionEvidence(phase="ended", outcome="failed", evidence="exit code 3"), RunStatus.DEAD, True),
    "unreadable": (CompletionEvidence(unread=("state.json: is not valid JSON",)), RunStatus.UNKNOWN, True),
    "untaken": (CompletionEvidence(phase="created", supervisor=False), RunStatus.DEAD, True),
    "asleep": (replace(LIVE, asleep_pid=77), RunStatus.STALLED, True),
    "stuck": (replace(LIVE, phase="finalizing", stuck=("pid 9",)), RunStatus.STALLED, True),
    "begins": (replace(LIVE, phase="waiting"), RunStatus.WAITING, False),
    "running": (LIVE, RunStatus.RUNNING, False),
    "orphan": (replace(LIVE, supervisor=False), RunStatus.RUNNING, True),
    "rebooted": (replace(GONE, rebooted=True), RunStatus.DEAD, True),
    "unfinished": (replace(GONE, status_left=True), RunStatus.DEAD, True),
    "gone": (GONE, RunStatus.DEAD, True),
    "unseen": (CompletionEvidence(phase="running", supervisor=False, job=None), RunStatus.UNKNOWN, True),
}
ALARM_CASES: dict[str, tuple[AlarmEvidence, str]] = {
    "stalled": (replace(WELL, progress_age_s=5000.0, card_pct=0), "no step for 1h23m (usual: 30 s)"),
    "silent": (replace(WELL, sample_age_s=900.0), "no sample for 15m00s"),
    "memory": (replace(WELL, memory_share=0.93), "93% of the limit"),
    "oom": (replace(WELL, oom_kills=2), "killed 2 of its processes"),
    "inodes": (replace(WELL, places=(DiskReading("/data", 500 << 30, 0.4, 0.96),)), "/data: 96% of the inodes"),
    "bytes": (replace(WELL, places=(DiskReading("/data", 1 << 30, 0.99, 0.2),)), "/data: 1 GiB free, 99% used"),
    "filling": (replace(WELL, places=(DiskReading("/data", 9 << 30, 0.6, 0.2, 1800.0),)), "/data: full in 30m00s"),
    "card": (replace(WELL, faults=("card 0: lost: fell off the bus",)), "fell off the bus"),
    "unread": (replace(WELL, unread=("health.jsonl: Permission denied",)), "Permission denied"),
}


@pytest.mark.requirement("MON-02", "MON-06", "MON-15")
@each("row", [row.id for row in ENDINGS])
def test_each_row_of_the_completion_test_answers_for_its_evidence(row: str) -> None:
    ending, standing, escalate = ENDING_CASES[row]
    found = judge_run(RUN, ending, AlarmEvidence())
    assert (found.ending.row, found.standing, found.escalate) == (row, standing, escalate)
    assert found.ending.text
    assert "{" not in found.ending.action


@pytest.mark.requirement("MON-02", "MON-10", "GPUH-05")
@each("row", [row.id for row in ALARMS])
def test_each_row_of_the_alarm_test_answers_for_its_evidence_alone(row: str) -> None:
    vitals, words = ALARM_CASES[row]
    found = judge_run(RUN, LIVE, vitals)
    assert [alarm.row for alarm in found.alarms] == [row]
    assert words in found.alarms[0].text
    assert found.escalate
    assert found.standing is (RunStatus.STALLED if row == "stalled" else RunStatus.RUNNING)


def test_a_run_that_is_well_needs_nobody() -> None:
    found = judge_run(RUN, LIVE, WELL)
    assert (found.standing, found.alarms, found.escalate) == (RunStatus.RUNNING, (), False)


@pytest.mark.requirement("MON-08")
def test_the_alarm_speaks_when_the_records_are_gone_and_the_end_when_the_samples_are() -> None:
    blind = CompletionEvidence(unread=("state.json: Input/output error",))
    alarmed = judge_run(RUN, blind, ALARM_CASES["stalled"][0])
    assert [alarm.row for alarm in alarmed.alarms] == ["stalled"]
    assert alarmed.standing is RunStatus.UNKNOWN
    nothing = AlarmEvidence()
    for name in ("succeeded", "failed", "gone", "orphan"):
        assert judge_run(RUN, ENDING_CASES[name][0], nothing).ending.row == name


def test_a_dead_run_does_not_stall_too() -> None:
    assert judge_run(RUN, GONE, ALARM_CASES["stalled"][0]).alarms == ()


def test_an_old_failure_is_history_and_a_fresh_one_is_not() -> None:
    failed = ENDING_CASES["failed"][0]
    assert judge_run(RUN, replace(failed, ended_age_s=RECENT_S - 1), AlarmEvidence()).escalate
    old = judge_run(RUN, replace(failed, ended_age_s=RECENT_S + 1), AlarmEvidence())
    assert (old.standing, old.escalate) == (RunStatus.DEAD, False)


def test_a_vanished_run_needs_a_person_however_old_it_is() -> None:
    assert judge_run(RUN, replace(GONE, ended_age_s=1e9), AlarmEvidence()).escalate


@pytest.mark.requirement("MON-15", "FAIL-01")
def test_a_failure_proposes_the_remedy_of_its_class() -> None:
    ending = replace(ENDING_CASES["failed"][0], failure_class="disk_full", remedy="free space, then restart it")
    found = judge_run(RUN, ending, AlarmEvidence())
    assert "(disk_full)" in found.ending.text
    assert found.ending.action == "free space, then restart it"


@pytest.mark.requirement("MON-07")
def test_a_slow_run_that_moves_is_no_stall_and_one_that_stands_is() -> None:
    slow = replace(WELL, usual_s=900.0, card_pct=0)
    assert judge_run(RUN, LIVE, replace(slow, progress_age_s=4000.0)).standing is RunStatus.RUNNING
    assert judge_run(RUN, LIVE, replace(slow, progress_age_s=4600.0)).standing is RunStatus.STALLED


@pytest.mark.requirement("MON-07")
def test_busy_cards_a_long_phase_and_the_first_steps_get_more_time() -> None:
    idle = replace(WELL, card_pct=0)
    limit = limit_s(idle, LIMITS)
    assert limit == LIMITS.floor_s
    assert limit_s(WELL, LIMITS) == LIMITS.floor_s * LIMITS.busy_factor
    assert limit_s(replace(idle, phase="Eval"), LIMITS) == LIMITS.first_s
    assert limit_s(replace(idle, usual_s=None), LIMITS) == LIMITS.first_s
    assert limit_s(replace(idle, usual_s=1e6), LIMITS) == LIMITS.ceiling_s


def test_what_the_job_file_says_about_stalls_counts() -> None:
    idle = replace(WELL, card_pct=0, progress_age_s=200.0)
    assert judge_run(RUN, LIVE, replace(idle, stated_limit_s=100.0)).standing is RunStatus.STALLED
    assert limit_s(replace(idle, stated_limit_s=0.0), LIMITS) is None
    assert judge_run(RUN, LIVE, replace(idle, stated_limit_s=0.0, progress_age_s=1e6)).standing is RunStatus.RUNNING
    starting = replace(idle, stated_limit_s=100.0, startup_s=3600.0, usual_s=None)
    assert judge_run(RUN, LIVE, starting).standing is RunStatus.RUNNING
    assert judge_run(RUN, LIVE, replace(starting, done=0)).standing is RunStatus.RUNNING
    assert judge_run(RUN, LIVE, replace(starting, done=1)).standing is RunStatus.STALLED, "only the first one is exempt"


def test_what_the_runs_own_clock_says_counts_at_once() -> None:
    found = judge_run(RUN, LIVE, replace(WELL, told="no step for 400 s"))
    assert (found.standing, found.alarms[0].text) == (RunStatus.STALLED, "its own clock says: no step for 400 s")


@pytest.mark.requirement("MON-07", "DIAG-03")
def test_a_job_without_a_heartbeat_stalls_only_when_it_provably_does_nothing() -> None:
    quiet = replace(WELL, progress="files", usual_s=None, progress_age_s=8000.0, cards=0, card_pct=None)
    assert judge_run(RUN, LIVE, replace(quiet, cpu_share=0.0)).standing is RunStatus.STALLED
    assert judge_run(RUN, LIVE, replace(quiet, cpu_share=0.9)).standing is RunStatus.RUNNING
    assert judge_run(RUN, LIVE, replace(quiet, cpu_share=None)).standing is RunStatus.RUNNING


def test_a_large_disk_with_much_left_is_not_full() -> None:
    roomy = replace(WELL, places=(DiskReading("/data", 900 << 30, 0.97, None),))
    assert judge_run(RUN, LIVE, roomy).alarms == ()


def test_the_interval_is_learned_from_changes_and_the_first_ones_do_not_count() -> None:
    assert learn_pace([]) == (None, None)
    assert learn_pace([(1.0, 5), (2.0, 5), (3.0, 6)]) == (3.0, None)
    warm = [(0.0, 0), (500.0, 1)]
    steady = [(500.0 + 10 * n, 1 + n) for n in range(1, 9)]
    assert learn_pace([*warm, *steady]) == (580.0, 10.0)
    assert learn_pace([*warm, *steady, (900.0, 9)]) == (580.0, 10.0)


def test_a_clock_that_was_set_back_counts_as_no_interval() -> None:
    marks = [(float(at), at) for at in (100, 110, 120, 130, 140, 150, 160)]
    assert learn_pace([*marks, (40.0, 1000), (50.0, 1001)]) == (50.0, 10.0)


@pytest.mark.requirement("MON-02")
def test_the_status_line_counts_everything() -> None:
    standings = [RunStatus.RUNNING] * 9 + [RunStatus.FINISHED] * 2 + [RunStatus.STALLED]
    assert summarise_runs(standings) == "12 runs: 9 running, 2 finished, 1 stalled"
    assert summarise_runs([RunStatus.UNKNOWN]) == "1 run: 1 unknown"
    assert summarise_runs([]) == "0 runs"


@pytest.mark.parametrize(
    ("word", "row", "action"),
    [
        (None, "unheard", f"holdfast show {RUN}"),
        (SchedulerReport("7", Phase.WAITING, "PENDING", evidence="job 7 waits"), "queued", ""),
        (SchedulerReport("7", Phase.RUNNING, "RUNNING", evidence="job 7 runs"), "placed", ""),
        (SchedulerReport("7", Phase.SUSPENDED, "SUSPENDED", evidence="job 7 is suspended"), "placed", ""),
        (SchedulerReport("7", Phase.OVER, "FAILED", evidence="job 7 is over"), "unrecorded", "holdfast reconcile"),
    ],
)
def test_of_a_vanished_run_of_a_scheduler_here_that_alone_is_heard(
    word: SchedulerReport | None, row: str, action: str
) -> None:
    # A restart is refused as long as the job is not over, an adoption always.
    for seen in (GONE, replace(GONE, job=True)):
        line = judge_run(RUN, replace(seen, scheduler="slurm", word=word), WELL).ending
        assert (line.row, line.action) == (row, action)


def test_a_failed_run_that_somebody_has_put_back_waits_and_needs_nobody() -> None:
    failed = ENDING_CASES["failed"][0]
    word = SchedulerReport("7", Phase.WAITING, "PENDING", evidence="job 7 waits")
    assert judge_run(RUN, replace(failed, scheduler="slurm", word=word), WELL).ending.row == "queued"
    over = replace(word, phase=Phase.OVER)
    for seen in (replace(failed, scheduler="slurm", word=over), replace(failed, scheduler="slurm")):
        assert judge_run(RUN, seen, WELL).ending.row == "failed"
    done = ENDING_CASES["succeeded"][0]
    assert judge_run(RUN, replace(done, scheduler="slurm", word=word), WELL).ending.row == "succeeded"
