"""Lines of a known_hosts file, and the change that puts one host's keys in the place of what stood there for it.

Pure: text in, text out. A name is as ssh looks it up: ``name``, ``[name]:port``, or the HostKeyAlias. Other names of a
line keep it, patterns and the lines of authorities and revoked keys stay. Source: sshd(8), "SSH_KNOWN_HOSTS FILE".
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os

from holdfast.model.record import record

HASHED = "|1|"
REVOKED = "@revoked"


@record
class HostKey:
    """A public host key: its type (``ssh-ed25519``) and its base64."""

    type: str
    blob: str

    @property
    def fingerprint(self) -> str:
        """As ssh-keygen(1) -l prints it: SHA256 in base64 without padding."""
        digest = hashlib.sha256(base64.b64decode(self.blob)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


@record
class KnownKey:
    """A line of a known_hosts file that speaks of a host: `marker` is empty, ``@cert-authority`` or ``@revoked``.

    `is_pattern`: it names the host by a pattern, so it speaks of others too.
    """

    key: HostKey
    path: str
    line: int
    marker: str = ""
    is_pattern: bool = False


def find_keys(text: str, name: str, path: str) -> list[KnownKey]:
    """The keys that are recorded for `name`; lines that are not understood are nobody's."""
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        parsed = _parse(line)
        if parsed is None:
            continue
        marker, hosts, key = parsed
        if _names(hosts, name):
            found.append(KnownKey(key, path, number, marker))
        elif _matches(hosts, name):
            found.append(KnownKey(key, path, number, marker, is_pattern=True))
    return found


def replace_keys(text: str, name: str, keys: tuple[HostKey, ...], *, hashed: bool) -> str:
    """The text with these keys for `name` and no others of its own; all other lines as they were."""
    kept = []
    for line in text.split("\n"):
        parsed = _parse(line)
        if parsed is None or parsed[0] or not _names(parsed[1], name):
            kept.append(line)
            continue
        others = [host for host in parsed[1].split(",") if host.lower() != name.lower()]
        if others and not parsed[1].startswith(HASHED):
            kept.append(line.replace(parsed[1], ",".join(others), 1))
    before = "\n".join(kept)
    if before and not before.endswith("\n"):
        before += "\n"
    word = hash_name(name, os.urandom(20)) if hashed else name
    return before + "".join(f"{word} {key.type} {key.blob}\n" for key in keys)


def hash_name(name: str, salt: bytes) -> str:
    """As ssh writes it with HashKnownHosts. Source: hostfile.c, host_hash: HMAC-SHA1 of the name with the salt."""
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"{HASHED}{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def parse_keys(text: str) -> list[HostKey]:
    """Every key in a known_hosts text, whoever it is of."""
    return [parsed[2] for line in text.split("\n") if (parsed := _parse(line)) is not None]


def _parse(line: str) -> tuple[str, str, HostKey] | None:
    """Marker, hosts and key of a line."""
    words = line.split()
    marker = words.pop(0) if words and words[0].startswith("@") else ""
    if len(words) < 3 or words[0].startswith("#"):
        return None
    try:
        base64.b64decode(words[2], validate=True)
    except (binascii.Error, ValueError):
        return None
    return marker, words[0], HostKey(words[1], words[2])


def _names(hosts: str, name: str) -> bool:
    """Whether it is named itself, in plain or as a hash."""
    if not hosts.startswith(HASHED):
        return name.lower() in hosts.lower().split(",")
    try:
        salt, _ = (base64.b64decode(part, validate=True) for part in hosts.removeprefix(HASHED).split("|"))
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hash_name(name, salt), hosts)


def _matches(hosts: str, name: str) -> bool:
    """Whether a pattern speaks of it. Source: ssh_config(5), "PATTERNS": ``*`` and ``?`` only, ``!`` excludes."""
    patterns = [] if hosts.startswith(HASHED) else hosts.lower().split(",")
    literal = [pattern.replace("[", "[[]") for pattern in patterns]
    if any(fnmatch.fnmatchcase(name.lower(), pattern[1:]) for pattern in literal if pattern.startswith("!")):
        return False
    return any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in literal if not pattern.startswith("!"))
