"""The variables of a profile, measured on this box: a directory that is not there is not promised to a job."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.core.profile.variables import MUST_BE_THERE, choose_variables
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model import wire
from holdfast.model.profile import Profile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.job import JobSpec

LOOK_S = 5.0
"""A mount that does not answer within this is taken for not there."""


def read_profile(stated: object) -> Profile:
    """The profile in a run's record.

    Raises:
        WireError: it is none.
    """
    return wire.decode(Profile, stated, "profile")


def find_variables(profile: Profile | None, job: JobSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """What of the profile's variables is added to `environ`; a disk that hangs costs `LOOK_S`."""
    if profile is None:
        return {}
    chosen = choose_variables(profile, job, environ, os.path.expanduser)
    places = {name: chosen[name] for name in MUST_BE_THERE if name in chosen}
    looked = {name: os.path.dirname(path) if name == "HF_HOME" else path for name, path in places.items()}
    there = _look(looked) if looked else {}
    return {name: value for name, value in chosen.items() if name not in places or there.get(name)}


def _look(places: Mapping[str, str]) -> dict[str, bool]:
    try:
        work = Offload(lambda: {name: os.path.isdir(path) for name, path in places.items()})
        found: dict[str, bool] = work.wait(LOOK_S)
    except (OSError, OffloadFailed):
        return {}
    return found
