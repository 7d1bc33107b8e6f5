"""The hash of a job: over its canonical JSON, so equal jobs have equal hashes on every box. Pure."""

from __future__ import annotations

import json

from holdfast.core.digest import sha256_hex
from holdfast.model import wire
from holdfast.model.job import JobSpec, Notify

NOT_HASHED = frozenset({"slurm", "channels"})
"""Fields of a job that say where it runs and who is told, and nothing of what it computes."""
AS_BEFORE = {"priority": "low", "notify": wire.encode(Notify())}
"""The same of two that were hashed once: they count as where nobody says anything."""


def is_hashed(key: str, value: object) -> bool:
    """Whether a field of a job counts. A job of one node, or without `results`, hashes as before there were others."""
    if key == "results":
        return isinstance(value, dict) and value.get("to") is not None
    return key not in NOT_HASHED and (key != "nodes" or value != 1)


def as_hashed(key: str, value: object) -> object:
    """The value that counts: who is told, and how nice a job is, are set for a whole account, and change no result."""
    return AS_BEFORE.get(key, value)


def hash_job(spec: JobSpec) -> str:
    """SHA-256 over the job's canonical JSON (sorted keys, no spaces), as hexadecimal digits."""
    return hash_encoded_job(wire.encode(spec))


def hash_encoded_job(job: dict[str, object]) -> str:
    """As `hash_job`, of the job's JSON value."""
    told = {key: as_hashed(key, value) for key, value in job.items() if is_hashed(key, value)}
    text = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256_hex(text.encode("utf-8", "surrogateescape"))
