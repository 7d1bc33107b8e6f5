"""The secrets that this account was given on this box: one file each in ``~/.config/holdfast/secrets``, for it alone.

Only what `holdfast secret push` was told to keep is here. A value is never part of an error, a record or an answer.
Each write is whole or not at all; what a killed writer left is removed by the next one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from holdfast.core.job.secret_names import MOST_BYTES, SecretUse, read_uses, to_variable
from holdfast.model.errors import NotPermitted, ResourceBusy, StorageError
from holdfast.model.record import record

from . import files
from .filesystems import NETWORK_FILESYSTEMS, filesystem_of
from .ownership import make_own_directory

LOCK = ".lock"
LOCK_LIMIT_S = 10.0
HOME_HINT = "have the account's home directory made writable there"
LEAST_LINE = 8
"""Shorter lines of a long secret are no secrets alone."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


class SecretUnusableError(Exception):
    """A secret that is not there, or that cannot be used; says why, and never what is in it."""

    def __init__(self, name: str, why: str, *, missing: bool = False) -> None:
        """`why` follows the name in a sentence."""
        super().__init__(f"secret {name} {why}")
        self.name, self.why, self.missing = name, why, missing


@record
class SecretFacts:
    """What may be told of a secret: its name, when it was written (epoch seconds), its file's mode."""

    name: str
    written_epoch_s: float
    mode: str


def secrets_directory() -> str:
    """Where secrets lie; not below $XDG_CONFIG_HOME, which a login and a job may have set differently."""
    return os.path.join(os.path.expanduser("~"), ".config", "holdfast", "secrets")


def write_secret(name: str, value: bytes) -> bool:
    """Keep a value under a checked name; whether there was one before.

    Raises:
        NotPermitted: others could replace the directory, or it is on storage shared with others.
        StorageError: it cannot be written; what was there before stands.
    """
    directory = open_directory()
    with locked(directory):
        path = f"{directory}/{name}"
        replaced = os.path.lexists(path)
        try:
            files.commit(path, value)
        except OSError as error:
            raise StorageError(f"secret {name} cannot be written: {error.strerror}", hint="see df") from error
    return replaced


def remove_secret(name: str) -> bool:
    """Remove a secret; whether there was one.

    Raises:
        StorageError: it is there and cannot be removed.
    """
    directory = secrets_directory()
    try:
        os.unlink(f"{directory}/{name}")
        files.sync_directory(directory)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"secret {name} cannot be removed: {error.strerror}") from error
    return True


def list_secrets() -> tuple[SecretFacts, ...]:
    """What there is, by name.

    Raises:
        StorageError: the directory cannot be read.
    """
    found = []
    try:
        for entry in os.scandir(secrets_directory()):
            facts = entry.stat(follow_symlinks=False)
            if not entry.name.startswith(".") and stat.S_ISREG(facts.st_mode):
                found.append(SecretFacts(entry.name, facts.st_mtime, f"{stat.S_IMODE(facts.st_mode):04o}"))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise StorageError(f"{secrets_directory()}: {error.strerror}") from error
    return tuple(sorted(found, key=lambda item: item.name))


def read_secret(name: str) -> bytes:
    """The value of a secret.

    Raises:
        SecretUnusableError: it is not there, others could read it, or it is no file of ours.
    """
    try:
        descriptor = os.open(
            f"{secrets_directory()}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        )
    except FileNotFoundError:
        raise SecretUnusableError(name, "is not on this box", missing=True) from None
    except OSError as error:
        raise SecretUnusableError(name, f"cannot be read: {error.strerror}") from None
    with open(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        mode = stat.S_IMODE(facts.st_mode)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            raise SecretUnusableError(name, "is no file of this account")
        if mode & 0o077:
            raise SecretUnusableError(name, f"could be read by others (mode {mode:04o})")
        try:
            value = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise SecretUnusableError(name, f"cannot be read: {error.strerror}") from None
    if not to_variable(value) or len(value) > MOST_BYTES:
        raise SecretUnusableError(name, "is empty" if len(value) <= MOST_BYTES else "is larger than any that we write")
    return value


def read_variables(uses: Iterable[SecretUse]) -> dict[str, str]:
    """The variables that a job gets for its secrets.

    Raises:
        SecretUnusableError: of the first that cannot be had.
    """
    found = {}
    for use in uses:
        value = to_variable(read_secret(use.name))
        if use.as_file:
            found[use.name] = f"{secrets_directory()}/{use.name}"
        elif b"\0" in value:
            raise SecretUnusableError(use.name, f"has a zero byte, which no variable can have: {use.name}=file")
        else:
            found[use.name] = os.fsdecode(value)
    return found


def read_known_values(texts: Iterable[str]) -> tuple[str, ...]:
    """The values behind a job's `secrets` that can be read now, to be left out of texts; each line of one, too."""
    found: list[str] = []
    for use in read_uses(texts):
        try:
            value = to_variable(read_secret(use.name)).decode("utf-8", "replace")
        except SecretUnusableError:
            continue
        found += [value, *(line.strip() for line in value.splitlines() if len(line.strip()) >= LEAST_LINE)]
    return tuple(found)


def open_directory() -> str:
    """The directory for secrets, made when it is not there, 0700 and for us alone.

    Raises:
        NotPermitted: others could replace it, or it lies on storage that is neither this box's nor our home's.
        StorageError: it cannot be made.
    """
    directory = secrets_directory()
    previous = os.umask(0o077)
    try:
        make_own_directory(directory, "the directory for secrets", "see who may write to it: chmod go-w")
        os.chmod(directory, 0o700)
    except StorageError as error:
        raise StorageError(str(error), hint=HOME_HINT) from error
    except OSError as error:
        raise StorageError(f"{directory}: {error.strerror}", hint=HOME_HINT) from error
    finally:
        os.umask(previous)
    refuse_shared(directory, "make ~/.config/holdfast/secrets a directory of the home itself")
    return directory


def refuse_shared(directory: str, hint: str) -> None:
    """Refuse a directory on storage that other machines mount, and that is not the home's.

    Raises:
        NotPermitted: it is on such.
    """
    kind, device = filesystem_of(directory)
    if kind in NETWORK_FILESYSTEMS and device != filesystem_of(os.path.expanduser("~"))[1]:
        where = os.path.realpath(directory)
        raise NotPermitted(f"{where} is on shared storage ({kind}) outside of the home directory", hint=hint)


def describe_storage() -> str:
    """What people should know of where secrets lie: a home that other machines see, too; else empty."""
    kind = filesystem_of(secrets_directory())[0]
    if kind not in NETWORK_FILESYSTEMS:
        return ""
    return f"the home directory there is on a network ({kind}): every machine that mounts it has the secret"


@contextmanager
def locked(directory: str, leftovers: str | None = None) -> Iterator[None]:
    """Alone among writers of secrets; what a killed one left in `directory` (of the file `leftovers`) is removed.

    On storage without locks writers are not kept apart, and each file is whole all the same.

    Raises:
        ResourceBusy: another writer has it for 10 s.
        StorageError: it cannot be taken.
    """
    try:
        descriptor = os.open(
            f"{secrets_directory()}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
    except OSError as error:
        raise StorageError(f"{secrets_directory()}/{LOCK}: {error.strerror}", hint="see df") from error
    try:
        if _take(descriptor):
            _remove_leftovers(directory, leftovers)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    """Whether the lock was taken; False where there are no locks."""
    deadline = time.monotonic() + LOCK_LIMIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ResourceBusy("another command writes secrets there", hint="repeat the command") from None
            time.sleep(0.02)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            raise StorageError(f"{secrets_directory()}/{LOCK}: {error.strerror}") from error
        else:
            return True


def _remove_leftovers(directory: str, of: str | None) -> None:
    for name in os.listdir(directory):
        if files.is_temporary(name) and (of is None or name.startswith(f".{of}.")):
            files.remove_quietly(f"{directory}/{name}")
