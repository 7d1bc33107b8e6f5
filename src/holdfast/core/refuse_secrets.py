"""A job is recorded, and its command line is open to every account of its box: one with a secret in it is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.job.redact import holds_secret, redact_argv, redact_text
from holdfast.core.messages.channels import list_targets
from holdfast.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.model.job import JobSpec
    from holdfast.model.queue import NewJob

EXPORT = "export it before `holdfast run` and let the program read it from its environment"


def refuse_secrets(spec: JobSpec, *, hint: str = EXPORT, recorded: JobSpec | None = None) -> None:
    """Refuse a job that could only be recorded with a secret in it; `hint` is how the job can have it.

    What the `recorded` job has already is not new.

    Raises:
        UsageError: names the place, never the value.
    """
    known = frozenset() if recorded is None else frozenset(_find_places(recorded))
    places = [place for place in _find_places(spec) if place not in known]
    if places:
        raise UsageError(f"the job holds what looks like a secret: {', '.join(places)}; jobs are recorded", hint=hint)


def find_job_secrets(jobs: Iterable[NewJob]) -> Iterable[str]:
    """A sentence for each job whose own command or variables hold what looks like a secret: never the value."""
    for job in jobs:
        command, env = job.change.get("command"), job.change.get("env")
        places = list(redact_argv(tuple(map(str, command)))[1]) if isinstance(command, (list, tuple)) else []
        if isinstance(env, dict):
            places += [f"env {name}" for name, text in env.items() if holds_secret(name, text)]
        if places:
            yield f"{job.name} holds what looks like a secret: {', '.join(places)}"


def _find_places(spec: JobSpec) -> list[str]:
    places = list(redact_argv(spec.command)[1])
    places += [f"setup line {n}" for n, line in enumerate(spec.setup, 1) if redact_argv(line.split())[1]]
    places += [f"smoke {place}" for place in redact_argv(spec.smoke)[1]]
    places += [f"env {name}" for name, value in spec.env.items() if holds_secret(name, value)]
    targets = list_targets(spec.notify, spec.channels)
    places += [f"notify: {target.label}" for target in targets if redact_text(target.address) != target.address]
    places += [f"notify.command {place}" for place in redact_argv(spec.notify.command)[1]]
    return places
