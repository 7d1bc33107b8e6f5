"""The environments in which jobs run: that of the shell that handed them in, kept until the last of them has begun.

What is no secret lies with the queue (``environments/<id>.json``, 0600). What looks like one (`core.job.redact`) is
never on a disk: it lies in memory, ``/dev/shm/holdfast-<uid>/queue/<id>.json`` (0600), which outlives the worker and
not the box. Equal environments are stored once: the id is a hash of the names and of the values that are no secrets,
and random where there are secrets, so that the id tells nothing about them.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING

from holdfast.core.job.redact import holds_secret
from holdfast.host.files import fallback, files
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.pattern import compile_later
from holdfast.model.record import record

if TYPE_CHECKING:
    from collections.abc import Mapping

DIRECTORY = "environments"
SECRETS = "queue"
MOST_UMASK = 0o777
_ID = compile_later(r"[0-9a-f]{16,64}", re.ASCII)
NOT_KEPT = frozenset({"HOLDFAST_RUN_ID", "HOLDFAST_ATTEMPT", "_", "OLDPWD", "SHLVL"})
"""What belongs to the caller's own process and not to what it starts."""


@record
class StoredEnvironment:
    """An environment as it can be had now. `missing` are names whose values were secrets and are gone."""

    environ: dict[str, str]
    missing: tuple[str, ...]
    umask: int


def store_environment(environ: Mapping[str, str], *, directory: str) -> str:
    """Keep an environment, and the umask of this process, for jobs of the queue in `directory`; its id.

    Raises:
        StorageError: it cannot be written, or its secrets cannot be kept in memory.
    """
    kept = {name: value for name, value in environ.items() if name not in NOT_KEPT}
    plain, secrets = _split(dict(sorted(kept.items())))
    umask = os.umask(0o077)
    os.umask(umask)
    record = {"environ": plain, "secret_names": sorted(secrets), "umask": umask}
    name = _find_id(directory, record, secrets)
    _write_secrets(name, secrets)
    path = f"{directory}/{DIRECTORY}/{name}.json"
    try:
        if not os.path.exists(path):
            os.makedirs(f"{directory}/{DIRECTORY}", mode=0o700, exist_ok=True)
            files.commit(path, wire.to_bytes(record))
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}", hint="see df and the queue directory's owner") from error
    return name


def _split(environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    secrets = {name: value for name, value in environ.items() if value and holds_secret(name, value)}
    return {name: value for name, value in environ.items() if name not in secrets}, secrets


def _find_id(directory: str, record: dict[str, object], secrets: dict[str, str]) -> str:
    """A hash of the record; where there are secrets, the id of the same record with the same secrets, else a new one.

    A hash that covered secrets would let whoever reads the queue try guesses.
    """
    digest = hashlib.sha256(wire.to_bytes(record)).hexdigest()[:32]
    if not secrets:
        return digest
    for name in _list_ids(directory):
        if name.startswith(digest) and _read_secrets(name) == secrets:
            return name
    return digest + os.urandom(8).hex()


def _list_ids(directory: str) -> list[str]:
    try:
        return sorted(name.removesuffix(".json") for name in os.listdir(f"{directory}/{DIRECTORY}"))
    except OSError:
        return []


def load_environment(name: str, *, directory: str) -> StoredEnvironment:
    """The environment of that id; of an empty id nothing but what every process has.

    Raises:
        StorageError: it is not there or cannot be read.
    """
    if not name:
        return StoredEnvironment(dict(os.environ), (), 0o077)
    if not _ID.fullmatch(name):
        raise StorageError(f"{name[:80]!r} is no id of an environment", hint="hand the job in again")
    path = f"{directory}/{DIRECTORY}/{name}.json"
    try:
        record = wire.parse_object(files.read_bytes(path), path)
        plain = {str(key): str(value) for key, value in record["environ"].items()}
        names = [str(item) for item in record["secret_names"]]
        umask = record["umask"]
    except (OSError, wire.WireError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(
            f"the environment {path} cannot be read: {error}",
            hint="give it anew from a shell that has it: holdfast queue resume JOB --with-environment",
        ) from error
    secrets = _read_secrets(name)
    missing = tuple(item for item in names if item not in secrets)
    usable = umask if isinstance(umask, int) and 0 <= umask <= MOST_UMASK else 0o077
    return StoredEnvironment({**plain, **{item: secrets[item] for item in names if item in secrets}}, missing, usable)


def refresh_secrets(name: str, environ: Mapping[str, str], *, directory: str) -> tuple[str, ...]:
    """Give the secrets of a stored environment anew, from `environ`; the names that are missing still.

    What was no secret stays as it was: jobs that ran and jobs that are to run shall have the same.

    Raises:
        StorageError: the environment cannot be read, or its secrets cannot be kept in memory.
    """
    stored = load_environment(name, directory=directory)
    known = _read_secrets(name)
    given = {item: environ[item] for item in (*stored.missing, *known) if environ.get(item)}
    _write_secrets(name, {**known, **given})
    return tuple(item for item in stored.missing if item not in given)


def remove_unneeded(names: frozenset[str], *, directory: str) -> None:
    """Remove environments that no job needs any more; what cannot be removed stays."""
    base = fallback.private_directory(fallback.MEMORY_ROOTS)
    for name in names:
        if _ID.fullmatch(name):
            # The secrets first: without the other file nobody would come back for them.
            if base is not None:
                files.remove_quietly(f"{base}/{SECRETS}/{name}.json")
            files.remove_quietly(f"{directory}/{DIRECTORY}/{name}.json")


def forget_all_but(used: frozenset[str], *, directory: str) -> None:
    """Remove every environment of the queue in `directory` that is not among those `used`.

    Nobody may hand anything in meanwhile: what was stored a moment ago is not used yet.
    """
    remove_unneeded(frozenset(_list_ids(directory)) - used, directory=directory)


def _write_secrets(name: str, secrets: Mapping[str, str]) -> None:
    if not secrets or _read_secrets(name) == dict(secrets):
        return
    base = fallback.private_directory(fallback.MEMORY_ROOTS)
    problem = "no private directory in memory can be had"
    if base is not None:
        try:
            os.makedirs(f"{base}/{SECRETS}", mode=0o700, exist_ok=True)
            files.commit(f"{base}/{SECRETS}/{name}.json", wire.to_bytes({"environ": dict(secrets)}), durable=False)
        except OSError as error:
            problem = f"{error.filename or base}: {error.strerror}"
        else:
            return
    names = ", ".join(sorted(secrets))
    raise StorageError(
        f"secrets ({names}) cannot be kept in memory: {problem}", hint="make /dev/shm usable, or unset them"
    )


def _read_secrets(name: str) -> dict[str, str]:
    base = fallback.private_directory(fallback.MEMORY_ROOTS)
    if base is None:
        return {}
    path = f"{base}/{SECRETS}/{name}.json"
    try:
        found = wire.parse_object(files.read_bytes(path), SECRETS).get("environ")
    except (OSError, wire.WireError):
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}
