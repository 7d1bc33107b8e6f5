"""The host key of a place: what it offers, what is recorded of it, and the one entry that `place trust` writes.

What is offered is asked of the host by ssh itself, on the very way that every call takes (jump hosts, proxies), with
a throwaway file of known hosts and no authentication: nothing of ours is sent. Whether to believe it is a person's
decision; nothing here makes it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing

from holdfast.host.files import files
from holdfast.host.files.ownership import make_own_directory
from holdfast.model.errors import Refused, StorageError, TooLate, Unsupported
from holdfast.model.place import Place
from holdfast.model.record import record
from holdfast.transport.child import Child, Ending, Late
from holdfast.transport.frame import make_nonce
from holdfast.transport.ssh.classify import explain
from holdfast.transport.ssh.command import find_program, target
from holdfast.transport.ssh.config import SshConfig, read_config

from .aliases import account_home
from .known_hosts import REVOKED, HostKey, KnownKey, find_keys, parse_keys, replace_keys
from .regular_file import read_regular

PATIENCE_S = 45.0
CONNECT_S = 15
MOST_BYTES = 8 << 20
NO_FILES = ("", "none", "/dev/null")
RSA = "rsa-sha2-512,rsa-sha2-256,ssh-rsa"
"""Algorithms of one key type have several names for RSA alone. Source: RFC 8332."""


@record
class HostKeys:
    """What is known of a place's host key.

    `name` is what ssh looks for in files of known hosts, `path` the file that it would write, `address` what is
    connected to. `recorded` are all entries that speak of the host, in any file that ssh reads; `hashed`: names are to
    be hashed.
    """

    name: str
    address: str
    path: str
    offered: tuple[HostKey, ...]
    recorded: tuple[KnownKey, ...]
    hashed: bool = False

    @property
    def is_trusted(self) -> bool:
        """Whether a recorded key is one that the host offers: then ssh lets it pass."""
        return any(not known.marker and known.key in self.offered for known in self.recorded)

    @property
    def has_changed(self) -> bool:
        """Whether something else is recorded for the host than it offers."""
        return not self.is_trusted and any(not known.marker for known in self.recorded)


@record
class OfferedKey:
    """A host key by its type and fingerprint."""

    type: str
    fingerprint: str


@record
class RecordedKey:
    """A host key that stands in a file of known hosts, and where; `marker` and `pattern` as in that file."""

    type: str
    fingerprint: str
    path: str
    line: int
    marker: str
    pattern: bool


@record
class HostKeyPage:
    """The keys that a place offers beside those that are recorded; `written` are the fingerprints recorded now.

    `looked_up_as` is the name in files of known hosts, `known_hosts` the file that is written. `changed`: another key
    is recorded than the place offers.
    """

    place: str
    looked_up_as: str
    address: str
    known_hosts: str
    trusted: bool
    changed: bool
    offered: tuple[OfferedKey, ...]
    recorded: tuple[RecordedKey, ...]
    written: tuple[str, ...] = ()


def describe_host_keys(place: str, found: HostKeys, written: Sequence[HostKey] = ()) -> HostKeyPage:
    """All that is known of a place's host key."""
    recorded = (
        RecordedKey(one.key.type, one.key.fingerprint, one.path, one.line, one.marker, one.is_pattern)
        for one in found.recorded
    )
    return HostKeyPage(
        place,
        found.name,
        found.address,
        found.path,
        found.is_trusted,
        found.has_changed,
        tuple(OfferedKey(key.type, key.fingerprint) for key in found.offered),
        tuple(recorded),
        tuple(key.fingerprint for key in written),
    )


def read_host_keys(place: Place) -> HostKeys:
    """Ask the host for its key, and the files of known hosts for what they have.

    Raises:
        Unreachable, TooLate: it cannot be asked.
        Refused: the key is revoked, a host on the way does not let us pass, or ssh refuses its configuration.
        Unsupported: ssh keeps no known hosts here.
        StorageError: a file of known hosts cannot be read.
    """
    config = read_config(place)
    name, address = _name_for_lookup(config), f"{config.host} port {config.port}"
    own = _list_files(config.values.get("userknownhostsfile", ""))
    if not own or own[0] in NO_FILES:
        raise Unsupported(
            f"{place.name}: ssh is configured to keep no known hosts for it (UserKnownHostsFile)",
            hint="name a file there; without one every key would be a stranger's",
        )
    recorded = _read_recorded([*own, *_list_files(config.values.get("globalknownhostsfile", ""))], name)
    offered = _ask_all(place, recorded)
    if revoked := [known for known in recorded if known.marker == REVOKED and known.key in offered]:
        where = f"{revoked[0].path} line {revoked[0].line}"
        raise Refused(
            f"{place.name} ({address}) offers a key that is revoked: {revoked[0].key.fingerprint} ({where})",
            hint="ask who runs it for its new key; a revoked one is never trusted",
            details={"place": place.name, "why": "host_key_revoked"},
        )
    hashed = config.values.get("hashknownhosts", "no") in ("yes", "true")
    return HostKeys(name, address, own[0], offered, tuple(recorded), hashed)


def write_host_keys(found: HostKeys, keys: tuple[HostKey, ...]) -> tuple[KnownKey, ...]:
    """Record `keys` for this host and port in the user's file; answers the entries that they replaced.

    The file is replaced whole, and keeps its mode; other hosts' entries in it stay as they are.

    Raises:
        NotPermitted, StorageError: it cannot be written.
    """
    directory = os.path.dirname(found.path)
    make_own_directory(directory, "the directory of known hosts", "let UserKnownHostsFile name a place of your own")
    text = _read_text(found.path)
    made = replace_keys(text, found.name, keys, hashed=found.hashed)
    try:
        path = os.path.realpath(found.path)
        mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o600
        files.commit(path, made.encode("utf-8", "surrogateescape"), mode=mode)
    except OSError as error:
        raise StorageError(f"{found.path} cannot be written: {error.strerror}", hint="nothing was changed") from error
    before = find_keys(text, found.name, found.path)
    return tuple(known for known in before if not known.marker and not known.is_pattern and known.key not in keys)


def _name_for_lookup(config: SshConfig) -> str:
    """What ssh looks for. Source: sshconnect.c, get_hostfile_hostname_ipaddr (OpenSSH 9.2)."""
    alias = config.values.get("hostkeyalias", "none")
    if alias != "none":
        return alias
    return config.host if config.port == "22" else f"[{config.host}]:{config.port}"


def _list_files(value: str) -> list[str]:
    """The files in a line of ``ssh -G``, which does not quote: a word that begins no path belongs to the one before."""
    found: list[str] = []
    for word in value.split():
        if found and not word.startswith(("/", "~")):
            found[-1] += f" {word}"
        else:
            found.append(word)
    home = account_home()
    return [home + path[1:] if path.startswith("~/") else path for path in found]


def _read_recorded(paths: list[str], name: str) -> list[KnownKey]:
    return [known for path in paths if path not in NO_FILES for known in find_keys(_read_text(path), name, path)]


def _read_text(path: str) -> str:
    try:
        data = read_regular(path, MOST_BYTES + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}", hint="see that it is a file and yours to read") from error
    if len(data) > MOST_BYTES:
        raise StorageError(f"{path}: is larger than {MOST_BYTES >> 20} MiB", hint="take old entries out of it")
    return data.decode("utf-8", "surrogateescape")


def _ask_all(place: Place, recorded: list[KnownKey]) -> tuple[HostKey, ...]:
    """The key that the host prefers, and of the types that are recorded too, which ssh would ask for first."""
    offered = _ask(place, "")
    types = {known.key.type for known in recorded if not known.marker} - {key.type for key in offered}
    if types and not any(known.key in offered for known in recorded):
        algorithms = ",".join(RSA if kind == "ssh-rsa" else kind for kind in sorted(types))
        try:
            offered += [key for key in _ask(place, algorithms) if key not in offered]
        except Refused:
            pass  # it has none of these types any more
    return tuple(offered)


def _ask(place: Place, algorithms: str) -> list[HostKey]:
    directory = tempfile.mkdtemp(prefix="holdfast-")
    try:
        path = f"{directory}/offered"
        argv = [find_program(), *_build_options(path, algorithms), *target(place), "exit 0"]
        ending = _call(place, argv)
        try:
            keys = parse_keys(_read_text(path))
        except StorageError:
            keys = []
    finally:
        files.remove_tree(directory)
    if not keys:
        raise explain(place, ending)
    return keys


def _build_options(path: str, algorithms: str) -> list[str]:
    """Options under which ssh writes down the key it is offered, in `path`, and goes no further."""
    settings = {
        "BatchMode": "yes",
        "ConnectTimeout": CONNECT_S,
        "StrictHostKeyChecking": "accept-new",  # of a file that is empty and thrown away
        "UserKnownHostsFile": f'"{path.replace("%", "%%")}"',
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": "offered",
        "HashKnownHosts": "no",
        "CheckHostIP": "no",
        "UpdateHostKeys": "no",
        "VerifyHostKeyDNS": "no",
        "IgnoreUnknown": "KnownHostsCommand",  # newer than OpenSSH 8.3
        "KnownHostsCommand": "none",
        "PreferredAuthentications": "none",
        "PubkeyAuthentication": "no",
        "ControlMaster": "no",
        "ControlPath": "none",
        "ClearAllForwardings": "yes",
        "LogLevel": "INFO",
        **({"HostKeyAlgorithms": algorithms} if algorithms else {}),
    }
    return ["-T", "-a", "-x", *[word for key, value in settings.items() for word in ("-o", f"{key}={value}")]]


def _call(place: Place, argv: list[str]) -> Ending:
    """How ssh ended. It is ended itself when it says more than a child may: the host is nobody's yet."""
    env = {**os.environ, "SSH_ASKPASS_REQUIRE": "never"}
    try:
        child = Child(argv, make_nonce(), stdin=subprocess.DEVNULL, env=env, group=True)
    except OSError as error:
        raise StorageError(f"{place.name}: {argv[0]!r} cannot be started: {error.strerror}") from error
    with closing(child):
        try:
            child.serve(_drop, _drop, deadline=time.monotonic() + PATIENCE_S)
        except Late as error:
            raise TooLate(
                f"{place.name}: no host key within {PATIENCE_S:g} s",
                hint=f"try `ssh {place.host}`",
                details={"place": place.name, "why": "timeout"},
            ) from error
        return child.ending()


def _drop(_: bytes) -> None:
    """No command of ours begins there, so nothing is its output."""
