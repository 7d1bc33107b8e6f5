"""Whether this account wrote down by which program, with which settings, a container's runtime is asked.

The record lies where the job can write, and both are obeyed outside of the container. So it has a seal made with a key
that lies in memory, in a directory of this account alone. It goes with the boot, and so do the containers that run.
"""

from __future__ import annotations

import hashlib
import json
import os

from holdfast.host.files import fallback, files
from holdfast.model.container import ContainerRecord
from holdfast.model.record import replace

KEY = "container-key"
KEY_BYTES = 32


def seal_record(container: ContainerRecord) -> ContainerRecord:
    """The record with its seal; without one where no key can be kept."""
    return replace(container, seal=_sign(container))


def is_sealed(container: ContainerRecord) -> bool:
    """Whether program and settings are as this account wrote them down, in this boot."""
    return bool(container.seal) and container.seal == _sign(container)


def _sign(container: ContainerRecord) -> str:
    """Empty without a key."""
    base = fallback.private_directory(fallback.MEMORY_ROOTS)
    if base is None:
        return ""
    path = f"{base}/{KEY}"
    try:
        if not os.path.lexists(path):
            files.make_once(path, os.urandom(KEY_BYTES))
        key = files.read_bytes(path, limit=KEY_BYTES, owners=(os.geteuid(),))
    except OSError:
        return ""
    sealed = [container.runtime.value, container.program, container.id, sorted(container.settings.items())]
    return hashlib.blake2b(json.dumps(sealed).encode("ascii"), key=key).hexdigest()
