"""What of an environment is recorded with a run, so that a supervisor which comes later works under the same rules.

Not the job's environment, which may hold secrets and is never stored: only what says where holdfast's own files are and
how its supervisor finds programs. Whoever settles a run years later, from a shell with other rules or another lease
area, settles it with these.
"""

from __future__ import annotations

from collections.abc import Mapping

from .job.redact import is_secret_value

RECORDED = frozenset(
    {
        *("HOLDFAST_RULES", "HOLDFAST_LEASE_DIR", "HOLDFAST_RUNS", "HOLDFAST_FAILURE_RULES", "HOLDFAST_SIMULATED_GPUS"),
        *("HOLDFAST_QUEUE", "HOLDFAST_JOB", "HOLDFAST_GROUP", "HOLDFAST_FAULT", "HOLDFAST_FAULT_DISK"),
        *("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"),
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG", "LC_ALL", "TZ"),
    }
)
STAND_INS = ("HOLDFAST_BOOT_ID", "HOLDFAST_MACHINE_ID")
"""Tests say with these what box it is now: they are of the moment, not of the run."""


def select_recorded(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that is recorded with a run."""
    return {name: environ[name] for name in sorted(RECORDED) if name in environ and not is_secret_value(environ[name])}


def restore_recorded(record: Mapping[str, object], now: Mapping[str, str]) -> dict[str, str]:
    """The environment for a supervisor of the run with this ``run.json``; of `now` only what tells of the box.

    A record that cannot be read leaves nothing to go by: then it is that part of `now` which would have been recorded.
    """
    stored = record.get("environment")
    values = stored if isinstance(stored, dict) else select_recorded(now)
    found = {str(name): value for name, value in values.items() if isinstance(value, str)}
    return {**found, **{name: now[name] for name in STAND_INS if name in now}}
