"""What of a profile goes along with an order, and the variables that jobs and hooks get of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from holdfast.core.job.job_paths import UnknownVariableError, resolve_path
from holdfast.model.profile import HOOK, PLAIN_VARIABLES, VARIABLES
from holdfast.model.record import replace

if TYPE_CHECKING:
    from holdfast.model.job import JobSpec
    from holdfast.model.profile import Profile

MUST_BE_THERE = ("DATA_DIR", "DURABLE_DIR", "SCRATCH", "HF_HOME")
"""Directories: a constant that is not there on the box is not handed on. Of HF_HOME, which is made, the one above."""


def for_box(profile: Profile) -> Profile:
    """What the box needs: no text for people, no provenance."""
    return replace(profile, sections={}, facts={}, origins={})


def list_hooks(profile: Profile | None) -> tuple[str, ...]:
    """Lines of sh that come before a job; they can only be of the user's own files (`schema.check_file`)."""
    hook = "" if profile is None else profile.variables.get(HOOK, "")
    return (hook,) if hook else ()


def choose_variables(
    profile: Profile, job: JobSpec, environ: Mapping[str, str], expand_user: Callable[[str], str]
) -> dict[str, str]:
    """The variables of a profile as they are on this box; what the caller or the job states stands.

    A path that names a variable which is not set here is left out.
    """
    stated = {"CRED_FILE": "", "DETACH": profile.detach, **profile.variables}
    chosen = {}
    for name in VARIABLES:
        value = stated.get(name)
        if value is None or name in environ or name in job.env or (name == "HF_HOME" and job.caches is not None):
            continue
        try:
            plain = not value or name in PLAIN_VARIABLES
            chosen[name] = value if plain else resolve_path(value, "/", environ, expand_user)
        except UnknownVariableError:
            continue
    return chosen
