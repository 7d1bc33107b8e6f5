"""The patrol's decision table: each row with its evidence, and two tests that do not lean on each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.core.patrol import ALARMS, ENDINGS, RECENT_S, judge, limit_s, summarise
from holdfast.core.patrol_evidence import LIMITS, Ending, Place, Standing, Vitals, learn

pytestmark = pytest.mark.pure

RUN = "20261120-100000-digits-0a1b"
LIVE = Ending(phase="running", phase_age_s=100.0, supervisor=True, job=True)
GONE = Ending(phase="running", phase_age_s=100.0, supervisor=False, job=False)
WELL = Vitals(
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
    places=(Place("/data", 500 << 30, 0.4, 0.2),),
)

ENDING_CASES: dict[str, tuple[Ending, Standing, bool]] = {
    "newer": (replace(LIVE, newer_schema=2), Standing.UNKNOWN, True),
    "incomplete": (Ending(incomplete="run.json does not exist"), Standing.UNKNOWN, True),
    "elsewhere": (replace(LIVE, here=False, host="b17", supervisor=None, job=None), Standing.UNKNOWN, False),
    "succeeded": (Ending(phase="ended", outcome="succeeded", evidence="exit code 0"), Standing.FINISHED, False),
    "fast": (Ending(phase="ended", outcome="succeeded", fast="duration: 2 s: fast"), Standing.FINISHED, True),
    "asked": (Ending(phase="ended", outcome="stopped", evidence="asked to stop by anna"), Standing.FINISHED, False),
    "failed": (Ending(phase="ended", outcome="failed", evidence="exit code 3"), Standing.DEAD, True),
    "unreadable": (Ending(unread=("state.json: is not valid JSON",)), Standing.UNKNOWN, True),
    "untaken": (Ending(phase="created", phase_age_s=500.0), Standing.DEAD, True),
    "asleep": (replace(LIVE, asleep_pid=77), Standing.STALLED, True),
    "stuck": (replace(LIVE, phase="finalizing", stuck=("pid 9",)), Standing.STALLED, True),
    "begins": (replace(LIVE, phase="waiting"), Standing.WAITING, False),
    "running": (LIVE, Standing.RUNNING, False),
    "orphan": (replace(LIVE, supervisor=False), Standing.RUNNING, True),
    "rebooted": (replace(GONE, rebooted=True), Standing.DEAD, True),
    "unfinished": (replace(GONE, status_left=True), Standing.DEAD, True),
    "gone": (GONE, Standing.DEAD, True),
    "unseen": (Ending(phase="running", supervisor=False, job=None), Standing.UNKNOWN, True),
}
ALARM_CASES: dict[str, tuple[Vitals, str]] = {
    "stalled": (replace(WELL, progress_age_s=5000.0, card_pct=0), "no step for 1h23m (usual: 30 s)"),
    "silent": (replace(WELL, sample_age_s=900.0), "no sample for 15m00s"),
    "memory": (replace(WELL, memory_share=0.93), "93% of the limit"),
    "oom": (replace(WELL, oom_kills=2), "killed 2 of its processes"),
    "inodes": (replace(WELL, places=(Place("/data", 500 << 30, 0.4, 0.96),)), "/data: 96% of the inodes"),
    "bytes": (replace(WELL, places=(Place("/data", 1 << 30, 0.99, 0.2),)), "/data: 1 GiB free, 99% used"),
    "filling": (replace(WELL, places=(Place("/data", 9 << 30, 0.6, 0.2, 1800.0),)), "/data: full in 30m00s"),
    "card": (replace(WELL, faults=("card 0: lost: fell off the bus",)), "fell off the bus"),
    "unread": (replace(WELL, unread=("health.jsonl: Permission denied",)), "Permission denied"),
}


@pytest.mark.requirement("MON-02", "MON-06", "MON-15")
@pytest.mark.parametrize("row", [row.id for row in ENDINGS])
def test_each_row_of_the_completion_test_answers_for_its_evidence(row: str) -> None:
    ending, standing, escalate = ENDING_CASES[row]
    found = judge(RUN, ending, Vitals())
    assert (found.ending.row, found.standing, found.escalate) == (row, standing, escalate)
    assert found.ending.text
    assert "{" not in found.ending.action


@pytest.mark.requirement("MON-02", "MON-10", "GPUH-05")
@pytest.mark.parametrize("row", [row.id for row in ALARMS])
def test_each_row_of_the_alarm_test_answers_for_its_evidence_alone(row: str) -> None:
    vitals, words = ALARM_CASES[row]
    found = judge(RUN, LIVE, vitals)
    assert [alarm.row for alarm in found.alarms] == [row]
    assert words in found.alarms[0].text
    assert found.escalate
    assert found.standing is (Standing.STALLED if row == "stalled" else Standing.RUNNING)


def test_a_run_that_is_well_needs_nobody() -> None:
    found = judge(RUN, LIVE, WELL)
    assert (found.standing, found.alarms, found.escalate) == (Standing.RUNNING, (), False)


@pytest.mark.requirement("MON-08")
def test_the_alarm_speaks_when_the_records_are_gone_and_the_end_when_the_samples_are() -> None:
    blind = Ending(unread=("state.json: Input/output error",))
    alarmed = judge(RUN, blind, ALARM_CASES["stalled"][0])
    assert [alarm.row for alarm in alarmed.alarms] == ["stalled"]
    assert alarmed.standing is Standing.UNKNOWN
    nothing = Vitals()
    for name in ("succeeded", "failed", "gone", "orphan"):
        assert judge(RUN, ENDING_CASES[name][0], nothing).ending.row == name


def test_a_dead_run_does_not_stall_too() -> None:
    assert judge(RUN, GONE, ALARM_CASES["stalled"][0]).alarms == ()


def test_an_old_failure_is_history_and_a_fresh_one_is_not() -> None:
    failed = ENDING_CASES["failed"][0]
    assert judge(RUN, replace(failed, ended_age_s=RECENT_S - 1), Vitals()).escalate
    old = judge(RUN, replace(failed, ended_age_s=RECENT_S + 1), Vitals())
    assert (old.standing, old.escalate) == (Standing.DEAD, False)


def test_a_vanished_run_needs_a_person_however_old_it_is() -> None:
    assert judge(RUN, replace(GONE, ended_age_s=1e9), Vitals()).escalate


@pytest.mark.requirement("MON-15", "FAIL-01")
def test_a_failure_proposes_the_remedy_of_its_class() -> None:
    ending = replace(ENDING_CASES["failed"][0], failure_class="disk_full", remedy="free space, then restart it")
    found = judge(RUN, ending, Vitals())
    assert "(disk_full)" in found.ending.text
    assert found.ending.action == "free space, then restart it"


@pytest.mark.requirement("MON-07")
def test_a_slow_run_that_moves_is_no_stall_and_one_that_stands_is() -> None:
    slow = replace(WELL, usual_s=900.0, card_pct=0)
    assert judge(RUN, LIVE, replace(slow, progress_age_s=4000.0)).standing is Standing.RUNNING
    assert judge(RUN, LIVE, replace(slow, progress_age_s=4600.0)).standing is Standing.STALLED


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
    assert judge(RUN, LIVE, replace(idle, stated_limit_s=100.0)).standing is Standing.STALLED
    assert limit_s(replace(idle, stated_limit_s=0.0), LIMITS) is None
    assert judge(RUN, LIVE, replace(idle, stated_limit_s=0.0, progress_age_s=1e6)).standing is Standing.RUNNING
    starting = replace(idle, stated_limit_s=100.0, startup_s=3600.0, usual_s=None)
    assert judge(RUN, LIVE, starting).standing is Standing.RUNNING


def test_what_the_runs_own_clock_says_counts_at_once() -> None:
    found = judge(RUN, LIVE, replace(WELL, told="no step for 400 s"))
    assert (found.standing, found.alarms[0].text) == (Standing.STALLED, "its own clock says: no step for 400 s")


@pytest.mark.requirement("MON-07", "DIAG-03")
def test_a_job_without_a_heartbeat_stalls_only_when_it_provably_does_nothing() -> None:
    quiet = replace(WELL, progress="files", usual_s=None, progress_age_s=8000.0, cards=0, card_pct=None)
    assert judge(RUN, LIVE, replace(quiet, cpu_share=0.0)).standing is Standing.STALLED
    assert judge(RUN, LIVE, replace(quiet, cpu_share=0.9)).standing is Standing.RUNNING
    assert judge(RUN, LIVE, replace(quiet, cpu_share=None)).standing is Standing.RUNNING


def test_a_large_disk_with_much_left_is_not_full() -> None:
    roomy = replace(WELL, places=(Place("/data", 900 << 30, 0.97, None),))
    assert judge(RUN, LIVE, roomy).alarms == ()


def test_the_interval_is_learned_from_changes_and_the_first_ones_do_not_count() -> None:
    assert learn([]) == (None, None)
    assert learn([(1.0, 5), (2.0, 5), (3.0, 6)]) == (3.0, None)
    warm = [(0.0, 0), (500.0, 1)]
    steady = [(500.0 + 10 * n, 1 + n) for n in range(1, 9)]
    assert learn([*warm, *steady]) == (580.0, 10.0)
    assert learn([*warm, *steady, (900.0, 9)]) == (580.0, 10.0)


def test_a_clock_that_was_set_back_counts_as_no_interval() -> None:
    marks = [(float(at), at) for at in (100, 110, 120, 130, 140, 150, 160)]
    assert learn([*marks, (40.0, 1000), (50.0, 1001)]) == (50.0, 10.0)


@pytest.mark.requirement("MON-02")
def test_the_status_line_counts_everything() -> None:
    standings = [Standing.RUNNING] * 9 + [Standing.FINISHED] * 2 + [Standing.STALLED]
    assert summarise(standings) == "12 runs: 9 running, 2 finished, 1 stalled"
    assert summarise([Standing.UNKNOWN]) == "1 run: 1 unknown"
    assert summarise([]) == "0 runs"
