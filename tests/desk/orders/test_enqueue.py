"""Jobs for a place's queue: which words are the same order."""

from __future__ import annotations

import os

import pytest

from holdfast.core.queue.submit_options import SubmitOptions
from holdfast.desk.orders.build import draft_job
from holdfast.desk.orders.enqueue import draft_jobs
from holdfast.model.job import JobSpec
from holdfast.model.place import Place
from holdfast.model.queue import GroupKind
from holdfast.model.record import replace

pytestmark = pytest.mark.files


def test_jobs_for_another_environment_of_the_place_are_another_order() -> None:
    draft, place = draft_job(JobSpec("job", ("true",), "/tmp"), os.environ, send_code=False), Place("box")
    wishes = SubmitOptions(group="default")
    places = (place, replace(place, setup=("module load a",)), replace(place, env_from="login"), place)
    found = [draft_jobs(draft, (), wishes, each, argv=(), kind=GroupKind.PLAIN).sha256 for each in places]
    assert len(set(found)) == 3
    assert found[0] == found[3]
