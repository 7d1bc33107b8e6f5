"""The hash of a job from its base and what it changes: that of the whole."""

from __future__ import annotations

import pytest

from holdfast.core.job.job_hash import hash_job
from holdfast.core.queue.job_hasher import JobHasher
from holdfast.model import wire
from holdfast.model.job import JobSpec

pytestmark = pytest.mark.pure


def test_hashes_are_those_of_the_resolved_job() -> None:
    spec = JobSpec("a", ("true", "\u00fc\udcff"), "/", env={"b": "1", "a": "2"})
    base = wire.encode(spec)
    change = {"command": ["x", "y"], "env": {"z": "1"}}
    assert JobHasher(base).hash({}) == hash_job(spec)
    assert JobHasher(base).hash(change) == hash_job(wire.decode(JobSpec, {**base, **change}))
