"""A profile of the user's own, begun from what was measured on a place: its disks, with size and inodes (PROF-14).

Whether a disk outlives the box nobody can measure from inside: that is ``depends`` until a person says it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.core.profile.schema import BASELINE, MEASURE
from holdfast.core.profile.survive import find_tier
from holdfast.host.files import files
from holdfast.host.files.filesystems import NETWORK_FILESYSTEMS
from holdfast.host.files.ownership import make_own_directory
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.profile import DEPENDS, PROFILE_NAME
from holdfast.model.units import format_count

from .read import SUFFIX, load_profile, today, user_directory

if TYPE_CHECKING:
    from holdfast.model.place import BoxFacts, DiskFacts, Place
    from holdfast.model.profile import Profile


def write_scaffold(place: Place, facts: BoxFacts, name: str, *, replace: bool) -> str:
    """Write the profile `name` with what was measured on `place`; answers its path.

    Raises:
        UsageError: the name cannot be one, or there is such a file already (and not `replace`).
        StorageError: it cannot be written.
    """
    if not PROFILE_NAME.fullmatch(name):
        raise UsageError(f"{name[:80]!r} is no name of a profile: small letters, digits and dashes, at most 32")
    parent = place.profile if place.profile not in ("", name) else BASELINE
    path = f"{user_directory()}/{name}{SUFFIX}"
    if os.path.lexists(path) and not replace:
        raise UsageError(f"{path} is there already", hint="--replace writes it anew; --name writes another one")
    text = build_scaffold(place, facts, load_profile(parent))
    make_own_directory(user_directory(), "the directory of profiles", "let XDG_CONFIG_HOME name a place of your own")
    try:
        files.commit(os.path.realpath(path), text.encode())
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}", hint="nothing was changed") from error
    return path


def build_scaffold(place: Place, facts: BoxFacts, parent: Profile) -> str:
    """The text of the file: a tier for each disk that was measured, over those of `parent`."""
    head = [
        f"# Measured on {place.name} by `holdfast profile probe`. Say what each tier outlives: yes, no or depends.",
        f"title = {_quote(f'{parent.title}, as {place.name} is')}",
        f"inherits = {_quote(parent.name)}",
        f"verified_on = {_quote(today())}",
        f"source = {_quote(f'measured on {place.name}')}",
    ]
    lines, names = head, {tier.name for tier in parent.tiers}
    measured: set[str] = set()
    for disk in (*facts.disks, *(each for each in facts.profile_disks if each.total_bytes is not None)):
        tier = find_tier(parent, disk.path)
        known = tier is not None and disk.path in tier.paths
        name = tier.name if known and tier is not None else _name_tier(disk.path, names)
        if name in measured:
            continue  # the first path of a tier says its size
        measured.add(name)
        names.add(name)
        lines += ["", *_write_tier(disk, name, parent, known=known)]
    return "\n".join(lines) + "\n"


def _write_tier(disk: DiskFacts, name: str, parent: Profile, *, known: bool) -> Iterator[str]:
    yield f"[tiers.{name}]"
    if not known:
        verbs = ", ".join(f"{verb.name} = {_quote(DEPENDS)}" for verb in parent.verbs)
        yield f"paths = [{_quote(disk.path)}]"
        yield f"survives = {{ {verbs} }}" if verbs else "survives = {}"
    yield f"cap = {_quote(MEASURE) if disk.total_bytes is None else disk.total_bytes}"
    network = ", a network file system" if disk.type in NETWORK_FILESYSTEMS else ""
    inodes = "" if disk.free_inodes is None else f", {format_count(disk.free_inodes, 'inode was', 'inodes were')} free"
    yield f"note = {_quote(f'{disk.type}{network}{inodes}')}"


def _name_tier(path: str, taken: set[str]) -> str:
    base = re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")[:40] or "system"
    name, number = base, 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    return name


def _quote(text: str) -> str:
    # A basic string of TOML has the escapes of JSON, besides DEL. Source: TOML 1.0, "String".
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
