"""Two jobs that would write to one place are found, and what they only read is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.queue.identity import find_collisions, find_outputs
from tests.each import each

pytestmark = [pytest.mark.pure, pytest.mark.requirement("QUEUE-03")]


def make_job(*command: str, **fields: object) -> dict[str, object]:
    """A resolved job that runs in /srv."""
    return {"command": ["python", "train.py", *command], "workdir": "/srv", **fields}


def outputs(*command: str, **fields: object) -> list[str]:
    """The places that such a job writes to."""
    return [path for path, _ in find_outputs(make_job(*command, **fields))]


@each(
    "words",
    [
        ("--out", "o"),
        ("--out=o",),
        ("--output-dir", "o"),
        ("--output_dir=o",),
        ("--save-dir", "o"),
        ("--log_dir=o",),
        ("--logdir", "o"),
        ("--checkpoint-dir", "o"),
        ("--ckpt_dir", "o"),
        ("--work-dir", "o"),
        ("-o", "o"),
        ("hydra.run.dir=o",),
        ("output_dir=o",),
        ("trainer.output_dir=o",),
        ("--trainer.default_root_dir=o",),
    ],
)
def test_an_argument_named_like_an_output_is_one(words: tuple[str, ...]) -> None:
    assert outputs(*words) == ["/srv/o"]


@each(
    "words",
    [
        ("--data-dir", "d"),
        ("--ckpt-path", "m.pt"),
        ("--checkpoint", "m.pt"),
        ("--model-dir", "m"),
        ("--output-format", "json"),
        ("--out", "/dev/null"),
        ("--out", "-"),
        ("--out", "--verbose"),
        ("--out=",),
        ("--layout", "x"),
        ("output",),
    ],
)
def test_an_argument_that_is_no_output_is_none(words: tuple[str, ...]) -> None:
    assert outputs(*words) == []


def test_a_shells_option_is_no_output() -> None:
    job = {"command": ["bash", "-o", "pipefail", "-c", "true"], "workdir": "/srv"}
    assert list(find_outputs(job)) == []


def test_variables_and_absolute_artifacts_are_outputs() -> None:
    assert outputs(env={"OUTPUT_DIR": "o", "DATA_DIR": "d"}, artifacts=["artifacts/x.json", "/data/x.json"]) == [
        "/srv/o",
        "/data/x.json",
    ]


def test_one_place_is_refused_naming_both_jobs_and_the_way_out() -> None:
    (problem,) = find_collisions([make_job("--out", "o"), make_job("--output-dir=/srv/./o/")], ["a", "b"])
    assert "a and b" in problem
    assert "/srv/o" in problem
    assert "{job}" in problem


def test_a_place_inside_that_of_another_is_refused() -> None:
    (problem,) = find_collisions([make_job("--out", "o"), make_job("--out", "o/b")], ["a", "b"])
    assert problem.startswith("b would write to /srv/o/b")
    assert "of a" in problem


def test_neighbours_with_a_common_beginning_are_apart() -> None:
    assert find_collisions([make_job("--out", "o"), make_job("--out", "o2"), make_job("--out", "o-x/y")]) == []


def test_a_jobs_own_places_may_lie_in_each_other() -> None:
    assert find_collisions([make_job("--out", "o", "--log-dir", "o/logs"), make_job("--out", "p")]) == []


def test_a_place_that_jobs_share_on_purpose_is_allowed() -> None:
    jobs = [make_job("--log-dir", "/tb"), make_job("--log-dir", "/tb")]
    assert find_collisions(jobs, shared=["/tb"]) == []
    assert find_collisions(jobs) != []


def test_a_mirror_of_checkpoints_is_no_collision() -> None:
    jobs = [make_job(checkpoints={"mirror": "/mirror"}), make_job(checkpoints={"mirror": "/mirror"})]
    assert find_collisions(jobs) == []


def test_many_jobs_with_one_place_are_one_problem() -> None:
    problems = find_collisions([make_job("--out", "o") for _ in range(1000)], [f"c{n}" for n in range(1000)])
    assert len(problems) == 1
    assert "997 more" in problems[0]


def test_a_remote_place_is_compared_as_text() -> None:
    jobs = [make_job("--out", "s3://bucket/a"), make_job("--out", "s3://bucket/a/")]
    assert len(find_collisions(jobs)) == 1


@given(st.lists(st.sampled_from(["a", "a/b", "a/c", "ab", "b", "b/a", "a/b/c"]), min_size=2, max_size=8))
def test_there_is_a_problem_exactly_when_two_places_are_equal_or_nested(paths: list[str]) -> None:
    expected = any(
        first == second or second.startswith(f"{first}/") or first.startswith(f"{second}/")
        for index, first in enumerate(paths)
        for second in paths[index + 1 :]
    )
    assert bool(find_collisions([make_job("--out", path) for path in paths])) is expected
