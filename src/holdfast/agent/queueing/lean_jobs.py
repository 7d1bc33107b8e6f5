"""Which jobs can be lean cells: what such a cell has, what it does without, and what is refused (docs/queue.md)."""

from __future__ import annotations

from dataclasses import fields

from ...model.job import JobSpec, Timeouts

KEPT_FIELDS = frozenset({"name", "command", "workdir", "env", "priority", "expected_s", "grace_s", "seed"})
"""What of a job a lean cell has."""
IGNORED_FIELDS = frozenset(
    {"grace_max_s", "on_supervisor_death", "retries", "stall", "health_every_s", "output_max_bytes", "tracker", "disk"}
    | {"allow_install", "ptrace", "threads"}
)
"""What a lean cell does not have, and what need not be refused: it limits or watches, and no result rests on it."""


def refuse(spec: JobSpec) -> tuple[str, ...]:
    """What of a job a lean cell cannot do, in words; empty when it can be lean.

    A field that is not named here or above is refused when it differs from its default: a new one is not passed over.
    """
    plain = JobSpec(spec.name, spec.command, spec.workdir)
    found = []
    for field in fields(JobSpec):
        name, value = field.name, getattr(spec, field.name)
        if name in KEPT_FIELDS or name in IGNORED_FIELDS or value == getattr(plain, name):
            continue
        if isinstance(value, Timeouts) and value == Timeouts(run_s=value.run_s):
            continue
        found.append(REFUSED.get(name, f"{name} is not for lean cells"))
    return tuple(found)


REFUSED = {
    "gpus": "it asks for cards: only a run of its own takes a lease",
    "gpu": "it asks for cards: only a run of its own takes a lease",
    "limits": "it has limits: only a run of its own has a control group",
    "containment": "it asks for a containment: a lean cell has a session of its own and no more",
    "inputs": "it has inputs to check: a lean cell is started without checks",
    "data": "it has data to protect: a lean cell is not contained",
    "artifacts": "it has artifacts to check: a lean cell is done by its exit code alone",
    "checkpoints": "it has checkpoints: a lean cell has no attempts",
    "config": "it has a configuration to keep: a lean cell has no snapshot",
    "timeouts": "it has timeouts of checks: only run_s is for lean cells",
    "notify": "it notifies: only a run of its own does",
    "pty": "it wants a terminal",
    "login_shell": "it wants a login shell",
    "image": "it runs in an image",
    "caches": "it has caches of its own",
}
"""Why, for what people may ask for."""
