"""Jobs for a place's queue: which words are the same order."""

from __future__ import annotations

import os

import pytest

from holdfast.core.queue.submit_options import SubmitOptions
from holdfast.desk.orders.build import draft_job
from holdfast.desk.orders.enqueue import draft_jobs
from holdfast.model.errors import UsageError
from holdfast.model.job import JobSpec
from holdfast.model.place import Place
from holdfast.model.queue import GroupKind, NewJob
from holdfast.model.record import replace

pytestmark = pytest.mark.files


def test_jobs_for_another_environment_of_the_place_are_another_order() -> None:
    draft, place = draft_job(JobSpec("job", ("true",), "/tmp"), os.environ, send_code=False), Place("box")
    wishes = SubmitOptions(group="default")
    places = (place, replace(place, setup=("module load a",)), replace(place, env_from="login"), place)
    found = [draft_jobs(draft, (), wishes, each, argv=(), kind=GroupKind.PLAIN).sha256 for each in places]
    assert len(set(found)) == 3
    assert found[0] == found[3]


@pytest.mark.requirement("XPORT-11")
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"command": ["python", "t.py", "--api-key", "c4n4ry51"]}, "job-1 holds what looks like a secret: argument 3"),
        ({"env": {"DATA": "https://b.example/x?X-Amz-Signature=c4n4ry51c4n4ry51"}}, "env DATA"),
    ],
)
def test_XPORT_11_a_job_of_many_with_a_secret_is_refused_before_any_is_sent(
    change: dict[str, object], named: str
) -> None:
    draft = draft_job(JobSpec("job", ("true",), "/tmp"), os.environ, send_code=False)
    jobs = [NewJob(f"job-{n}", change if n else {}) for n in range(13)]
    with pytest.raises(UsageError, match=r"and 2 more$") as caught:
        draft_jobs(draft, jobs, SubmitOptions(group="g"), Place("box"), argv=(), kind=GroupKind.SWEEP)
    assert named in str(caught.value)
    assert "c4n4ry" not in str(caught.value)
    assert "holdfast secret push" in caught.value.hint
