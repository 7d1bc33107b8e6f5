"""The hash of a resolved job, without resolving ten thousand jobs that differ in three keys."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from holdfast.core.job.job_hash import as_hashed, is_hashed

if TYPE_CHECKING:
    from collections.abc import Mapping


class JobHasher:
    """Hashes jobs of one base; the result is what `core.job.job_hash.hash_job` says of the whole job.

    `base` is the encoded job with every field. Each key's canonical JSON is made once; a job only adds its own.
    """

    def __init__(self, base: Mapping[str, object]) -> None:
        """Encode the base's keys."""
        self._parts = {key: _member(key, value) for key, value in base.items() if is_hashed(key, value)}

    def hash(self, change: Mapping[str, object]) -> str:
        """SHA-256 of the base with `change` laid over it key by key, as hexadecimal digits."""
        kept = {key: part for key, part in self._parts.items() if key not in change}
        own = {key: _member(key, value) for key, value in change.items() if is_hashed(key, value)}
        parts = {**kept, **own}
        text = "{" + ",".join(parts[key] for key in sorted(parts)) + "}"
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _member(key: str, value: object) -> str:
    encoded = json.dumps(as_hashed(key, value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"{json.dumps(key, ensure_ascii=False)}:{encoded}"
