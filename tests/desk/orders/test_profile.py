"""What goes along of a place's profile: with an order, with jobs of a queue, and into what makes two orders one."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.job.job_hash import hash_job
from holdfast.core.queue.submit_options import SubmitOptions
from holdfast.desk.orders.build import Draft, build_order, list_setup
from holdfast.desk.orders.enqueue import draft_jobs
from holdfast.desk.orders.submit import _hash_asked
from holdfast.desk.profiles.read import user_directory
from holdfast.model.errors import UsageError
from holdfast.model.job import JobSpec
from holdfast.model.place import Place
from holdfast.model.queue import GroupKind

pytestmark = pytest.mark.files

JOB = JobSpec("job", ("true",), ".")
DRAFT = Draft(JOB, hash_job(JOB), None)
PLAIN = Place("box", host="box")
RENTED = Place("box", host="box", profile="runpod", setup=("module load cuda",))


@pytest.fixture(autouse=True)
def _config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def write_hook(line: str) -> None:
    path = Path(user_directory(), "runpod.toml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'[variables]\nPROXY_HOOK = "{line}"\n')
    path.chmod(0o600)


@pytest.mark.requirement("RAIL-14", "PROF-07")
def test_an_order_has_the_profile_and_the_users_own_hook_first() -> None:
    write_hook(". /etc/proxy")
    order = build_order(DRAFT, RENTED, run_id="r", bundle="b", argv=())
    assert order.setup == (". /etc/proxy", "module load cuda")
    assert order.profile is not None
    assert (order.profile.name, order.profile.sections, order.profile.facts) == ("runpod", {}, {})
    jobs = draft_jobs(DRAFT, (), SubmitOptions(group="g"), RENTED, argv=(), kind=GroupKind.PLAIN)
    ordered = jobs.order.submission.ordered
    assert ordered is not None
    assert (ordered.setup, ordered.profile) == (order.setup, order.profile)


@pytest.mark.requirement("PROF-10")
def test_a_place_without_a_profile_is_ordered_at_as_ever() -> None:
    order = build_order(DRAFT, PLAIN, run_id="r", bundle="b", argv=())
    assert (order.profile, order.setup, list_setup(PLAIN)) == (None, (), ())
    rented = build_order(DRAFT, RENTED, run_id="r", bundle="b", argv=())
    assert (rented.job, rented.job_sha256) == (order.job, order.job_sha256), "the job says nothing of the place"
    assert _hash_asked("abc", PLAIN) == "abc"


def test_another_profile_or_hook_is_another_order() -> None:
    found = {_hash_asked("abc", RENTED)}
    write_hook("true")
    found |= {_hash_asked("abc", RENTED), _hash_asked("abc", Place("box", host="box", profile="lambda"))}
    assert len(found) == 3


def test_an_unknown_profile_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(UsageError, match="there is no profile 'runpood'; did you mean runpod"):
        _hash_asked("abc", Place("box", host="box", profile="runpood"))
