"""The entry ``secret``: keeps, lists, removes and tries what this account was given to keep secret on this box.

One JSON object on standard input says what to do (`action`); a value is in it and nowhere else: not in the words of
this process, its environment, its answer, or an error. Ours are ``~/.config/holdfast/secrets/NAME`` (0600 in a 0700
directory); of ``~/.netrc`` one machine's entry is replaced, and everything else in it stays.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from typing import Any

from holdfast.agent.place.answer import answer, read_input
from holdfast.core.job.secret_names import MOST_BYTES, check_secret_name, to_variable
from holdfast.core.netrc import NetrcEntry, NetrcError, build_entry, merge_entry
from holdfast.host.clock import format_utc
from holdfast.host.files import files, secret_files
from holdfast.host.files.ownership import describe_weakness
from holdfast.model.errors import NotPermitted, PreflightFailed, StorageError, UsageError

from .check import try_bearer

MOST_NETRC_BYTES = 1 << 20
WHAT = "what to do with a secret"


def main(_words: list[str]) -> int:
    """Be the entry ``secret``."""
    os.umask(0o077)
    return answer(lambda: carry_out(read_input(WHAT)))


def carry_out(asked: dict[str, Any]) -> dict[str, object]:
    """Do what `asked` says.

    Raises:
        HoldfastError: it was not done.
    """
    action = asked.get("action")
    if action == "list":
        facts = secret_files.list_secrets()
        return {
            "secrets": [
                {"name": item.name, "written_at": format_utc(item.written_epoch_s), "mode": item.mode} for item in facts
            ]
        }
    if action == "netrc":
        return _merge(_read_entry(asked))
    name = str(asked.get("name", ""))
    if problem := check_secret_name(name):
        raise UsageError(problem)
    if action == "push":
        replaced = secret_files.write_secret(name, _read_value(asked))
        return {"name": name, "replaced": replaced, "notice": secret_files.describe_storage()}
    if action == "remove":
        return {"name": name, "removed": secret_files.remove_secret(name)}
    if action == "check":
        return {"name": name, "status": try_bearer(_read_kept(name), str(asked.get("url", "")))}
    raise UsageError(f"{WHAT}: there is no action {action!r}")


def _read_value(asked: dict[str, Any]) -> bytes:
    try:
        value = base64.b64decode(str(asked.get("value", "")), validate=True)
    except (binascii.Error, ValueError):
        raise UsageError("the value is not as a desk sends it") from None
    if not to_variable(value):
        raise UsageError("the value is empty")
    if len(value) > MOST_BYTES:
        raise UsageError(f"the value is larger than {MOST_BYTES} bytes")
    return value


def _read_kept(name: str) -> bytes:
    try:
        return to_variable(secret_files.read_secret(name))
    except secret_files.SecretUnusableError as error:
        raise PreflightFailed(str(error), hint=f"push it: holdfast secret push PLACE {name}") from None


def _read_entry(asked: dict[str, Any]) -> NetrcEntry:
    words = asked.get("words")
    try:
        if not isinstance(words, dict):
            raise NetrcError("no entry of a netrc came")
        return build_entry(str(asked.get("machine", "")), {str(key): str(word) for key, word in words.items()})
    except NetrcError as error:
        raise UsageError(str(error)) from None


def _merge(entry: NetrcEntry) -> dict[str, object]:
    """Put the entry into ~/.netrc; a link there is followed to a file of ours, in a directory that is ours alone.

    Raises:
        NotPermitted: others could replace the file, or it is on storage shared with others.
    """
    path = os.path.realpath(os.path.expanduser("~/.netrc"))
    directory, name = os.path.split(path)
    secret_files.open_directory()
    hint = "make ~/.netrc a file of the home itself"
    secret_files.refuse_shared(directory, hint)
    weakness = describe_weakness(directory)
    if weakness:
        raise NotPermitted(f"{path}, where ~/.netrc leads, could be replaced by others: {weakness}", hint=hint)
    with secret_files.locked(directory, name):
        before = _read_netrc(path)
        try:
            after = merge_entry(before, entry)
        except NetrcError as error:
            raise StorageError(
                f"{path} cannot be read as a netrc ({error}); nothing was changed", hint="mend or move it there"
            ) from None
        try:
            files.commit(path, after.encode("utf-8", "surrogateescape"))
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}", hint="see df") from error
    return {"machine": entry.machine, "path": path, "notice": secret_files.describe_storage()}


def _read_netrc(path: str) -> str:
    """What is there; empty without a file."""
    try:
        facts = os.lstat(path)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            raise NotPermitted(f"{path} is no file of this account; nothing was changed")
        return files.read_bytes(path, limit=MOST_NETRC_BYTES).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
