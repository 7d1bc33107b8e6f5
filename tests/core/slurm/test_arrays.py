"""How tasks become arrays: grouped by what they ask for, cut to what the site takes, kept to a limit together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.queue.submit_options import SubmitOptions
from holdfast.core.slurm.arrays import TaskPlan, join_ids, plan_arrays, plan_script, refuse_queue_words, share_limit
from holdfast.core.slurm.script import render_script
from holdfast.core.slurm.texts import list_ids
from holdfast.model.errors import UsageError
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import JobSpec, Limits, OutOfMemory, Retries
from holdfast.model.queue import IfChanged
from holdfast.model.slurm import SlurmRecord

pytestmark = pytest.mark.pure


def _task(name: str, cards: int = 0, expected_s: float | None = None, **slurm: str) -> TaskPlan:
    return TaskPlan(name, JobSpec("x", ("true", name), ".", gpus=GpuRequest(count=cards), slurm=slurm), expected_s)


@pytest.mark.requirement("QUEUE-14")
def test_QUEUE_14_tasks_of_equal_resources_are_one_array_the_longest_first() -> None:
    tasks = [_task("a"), _task("b", 2), _task("c", 0, 60), _task("d", 0, None, time="5"), _task("e", 0, 90)]
    found = plan_arrays(tasks, {"partition": "gpu"}, most=1001, limit=None)
    assert [plan.runs for plan in found] == [("e", "c", "a"), ("b",), ("d",)]
    assert [plan.option for plan in found] == ["0-2", "0-0", "0-0"]
    script = plan_script("rates", 1, "/r/.sweeps-0/rates/1", found[0], SlurmRecord("", ""), ("python3", "x"))
    text = render_script(script)
    assert "#SBATCH --array=0-2\n" in text
    assert "#SBATCH --output=/r/.sweeps-0/rates/1/slurm-%A_%a.log\n" in text
    assert (script.record.name, script.record.lead_s) == ("rates-1", 120.0)


def test_an_array_is_no_larger_than_the_site_takes_and_all_keep_to_one_limit() -> None:
    tasks = [_task(str(number)) for number in range(25)]
    found = plan_arrays(tasks, {}, most=10, limit=6)
    assert [len(plan.runs) for plan in found] == [10, 10, 5]
    assert [plan.option for plan in found] == ["0-9%3", "0-9%2", "0-4%1"]
    for most, limit, words in ((0, None, "no arrays"), (10, 2, "cannot keep to 2 at once")):
        with pytest.raises(UsageError, match=words):
            plan_arrays(tasks, {}, most=most, limit=limit)
    with pytest.raises(UsageError, match="mem"):
        plan_arrays(
            [TaskPlan("a", JobSpec("x", ("t",), ".", limits=Limits(8 << 30)), None)], {"mem": "1G"}, most=9, limit=1
        )


@given(st.lists(st.integers(1, 1001), min_size=1, max_size=8), st.integers(8, 500))
def test_the_shares_of_a_limit_are_never_more_than_it_together(sizes: list[int], limit: int) -> None:
    shares = [share or 0 for share in share_limit(limit, sizes)]
    assert sum(shares) <= limit
    assert all(1 <= share <= size for share, size in zip(shares, sizes, strict=True))
    assert sum(shares) == min(limit, sum(sizes)) or any(
        share == size for share, size in zip(shares, sizes, strict=True)
    )


@given(st.sets(st.integers(0, 400)))
def test_ids_that_are_joined_name_the_same_tasks(tasks: set[int]) -> None:
    ids = {f"7_{task}" for task in tasks} | {"9"}
    words = join_ids(sorted(ids))
    assert {name for word in words for name in list_ids(word)} == ids
    assert join_ids(["7_1", "7_2", "7_5"]) == ["7_[1-2,5]"]


def test_what_only_a_queue_has_is_refused_with_the_word_of_slurm() -> None:
    plain = JobSpec("x", ("true",), ".")
    refuse_queue_words(SubmitOptions(), plain)
    larger = JobSpec("x", ("true",), ".", retries=Retries(out_of_memory=OutOfMemory.LARGER))
    for wishes, job, word in (
        (SubmitOptions(priority=2), plain, "nice=N"),
        (SubmitOptions(needs=("a",)), plain, "dependency=afterok"),
        (SubmitOptions(not_before=1.0), plain, "begin=TIME"),
        (SubmitOptions(hold_after=3), plain, "sweep check"),
        (SubmitOptions(paused=True), plain, "begin=TIME"),
        (SubmitOptions(if_changed=IfChanged.HOLD), plain, "leave it out"),
        (SubmitOptions(claims="/x"), plain, "leave it out"),
        (SubmitOptions(), larger, "gres=gpu"),
    ):
        with pytest.raises(UsageError, match=word):
            refuse_queue_words(wishes, job)
