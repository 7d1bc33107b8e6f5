"""What a run gets of the profile of its place: variables, hooks, checks, and how often it saves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.plan.profile import find_variables
from holdfast.agent.supervise.start.job_context import find_interruption_time
from holdfast.model.job import Checkpoints, JobSpec, Notify
from holdfast.model.profile import EndVerb, Profile, Tier
from tests.agent.ordering import make_order
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.agent.ordering import OrderBox

pytestmark = pytest.mark.process

PRINT = ("sh", "-c", 'echo "$DATA_DIR|$DURABLE_DIR|${SCRATCH-unset}|$HF_HOME|${CRED_FILE-unset}|$DETACH"')


def rented(tmp_path: Path, **variables: str) -> Profile:
    for name in ("data", "keep"):
        (tmp_path / name).mkdir(exist_ok=True)
    return Profile(
        "rented",
        "A rented box",
        metered="money",
        meter_stop="destroy",
        interruptions_s=1800.0,
        tiers=(Tier("disk", ("/",), {"destroy": "no"}), Tier("kept", (f"{tmp_path}/keep",), {"destroy": "yes"})),
        verbs=(EndVerb("destroy", "press it", stops_meter=True, irreversible=True),),
        variables={"DATA_DIR": f"{tmp_path}/data", "HF_HOME": f"{tmp_path}/data/hf", **variables},
    )


@pytest.mark.requirement("PROF-07")
def test_PROF_07_the_job_has_what_the_profile_says_and_is_there(order_box: OrderBox, tmp_path: Path) -> None:
    profile = rented(tmp_path, SCRATCH="/no-such-disk", DURABLE_DIR="/no-such-disk")
    told = ("sh", "-c", f'cat > {tmp_path}/message; echo "$DATA_DIR" > {tmp_path}/told')
    job: dict[str, Any] = {"notify": Notify(command=told)}
    order_box.submit(make_order(*PRINT, profile=profile, job=job), environ={"DETACH": "mine"})
    assert order_box.ended() == 0
    run_dir = Path(order_box.run_dir())
    # A message may still be on its way when the run has ended.
    wait_until(lambda: (tmp_path / "told").exists() and (tmp_path / "told").read_text(), what="the hook")
    assert (tmp_path / "told").read_text() == f"{tmp_path}/data\n", "a hook has it, too"
    # Measured before a constant: a directory that is not there is not promised. What the caller has stands.
    assert (run_dir / "attempts/1/output.log").read_text() == f"{tmp_path}/data||unset|{tmp_path}/data/hf||mine\n"
    assert json.loads((run_dir / "run.json").read_text())["profile"]["name"] == "rented"
    findings = json.loads((run_dir / "attempts/1/preflight.json").read_text())["findings"]
    assert [found["level"] for found in findings if found["id"] == "lasting.checkpoints"] == ["warn"]


@pytest.mark.requirement("PRE-15")
def test_PRE_15_a_run_whose_durable_directory_goes_with_the_box_does_not_start(
    order_box: OrderBox, tmp_path: Path
) -> None:
    job: dict[str, Any] = {"env": {"DURABLE_DIR": f"{tmp_path}/data"}}
    order_box.submit(make_order("true", profile=rented(tmp_path), job=job))
    assert order_box.ended() == 78
    ended = json.loads(Path(order_box.run_dir(), "attempts/1/exit.json").read_text())
    assert f"{tmp_path}/keep outlives destroy" in json.dumps(ended)


def test_paths_of_a_job_may_name_what_the_profile_gives(order_box: OrderBox, tmp_path: Path) -> None:
    job: dict[str, Any] = {"checkpoints": Checkpoints(mirror="$DURABLE_DIR/mirror")}
    profile = rented(tmp_path, DURABLE_DIR=f"{tmp_path}/keep")
    order_box.submit(make_order("sh", "-c", 'echo "$HOLDFAST_MIRROR_DIR"', profile=profile, job=job))
    assert order_box.ended() == 0
    log = Path(order_box.run_dir(), "attempts/1/output.log").read_text()
    assert log.startswith(f"{tmp_path}/keep/mirror/")


def test_a_disk_that_hangs_costs_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.agent.plan.profile.LOOK_S", 0.0)
    found = find_variables(rented(tmp_path), JobSpec("job", ("true",), "/"), {})
    assert found == {"CRED_FILE": "", "DETACH": "holdfast"}
    assert find_variables(None, JobSpec("job", ("true",), "/"), {}) == {}


class _Context:
    """What `find_interruption_time` looks at."""

    def __init__(self, run_dir: Path, attempt: int, profile: Profile | None, stated: float | None = None) -> None:
        self.run_dir, self.attempt, self.profile = str(run_dir), attempt, profile
        self.spec = JobSpec("job", ("true",), "/", checkpoints=Checkpoints(interruptions_s=stated))


@pytest.mark.requirement("SPOT-03")
def test_SPOT_03_the_job_goes_before_the_profile_and_what_was_observed_corrects_it(tmp_path: Path) -> None:
    def ask(*words: Any) -> float | None:
        context: Any = _Context(tmp_path, *words)
        return find_interruption_time(context)

    profile = rented(tmp_path)
    assert (ask(1, profile), ask(1, None), ask(1, profile, 60.0), ask(2, profile)) == (1800.0, None, 60.0, 1800.0)
    attempt = tmp_path / "attempts" / "1"
    attempt.mkdir(parents=True)
    record = {"outcome": "preempted", "started_at": "2026-11-23T08:00:00.000Z", "duration_s": 600.0}
    (attempt / "exit.json").write_text(json.dumps(record))
    assert ask(2, profile) == 1200.0
    assert ask(2, None) == (3 * 3600.0 + 600) / 2
