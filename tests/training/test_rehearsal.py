"""Under `holdfast drill` the library keeps away from what belongs to the real training."""

from __future__ import annotations

import pytest

from holdfast.training.box.environment import JobContext
from holdfast.training.settings import choose_directory, choose_mirror

pytestmark = [pytest.mark.pure, pytest.mark.requirement("CKPT-15")]

REHEARSAL = JobContext(checkpoint_dir="/runs/x/checkpoints", rehearsal=True)


def test_a_directory_that_the_script_names_gets_a_stand_in_of_its_own() -> None:
    one, other = choose_directory("/data/a/ck", REHEARSAL), choose_directory("/data/b/ck", REHEARSAL)
    assert one.startswith("/runs/x/checkpoints/ck-")
    assert other.startswith("/runs/x/checkpoints/ck-")
    assert one != other
    assert one == choose_directory("/data/a/ck/", REHEARSAL)


def test_without_a_rehearsal_the_script_has_the_last_word() -> None:
    assert choose_directory("/data/a/ck", JobContext(checkpoint_dir="/runs/x/checkpoints")) == "/data/a/ck"


def test_the_runs_own_directory_stays() -> None:
    for given in (None, "/runs/x/checkpoints", "/runs/x/checkpoints/"):
        assert choose_directory(given, REHEARSAL) == "/runs/x/checkpoints"


def test_nothing_is_copied_to_a_mirror() -> None:
    assert choose_mirror("/safe", REHEARSAL, "/runs/x/checkpoints") is None
    assert choose_mirror("/safe", JobContext(), "/runs/x/checkpoints") == "/safe"
