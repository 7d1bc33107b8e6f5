"""What was measured of a place, kept at the desk: ``$XDG_STATE_HOME/holdfast/places/NAME/facts.json`` (0600).

A cache: it may be removed at any time, and is measured again. It counts only for the configuration that it was measured
with, so that another machine under the same name does not inherit it. Nothing secret is in it: `BoxFacts` has no room.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os

from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.place import BoxFacts, Place
from holdfast.model.record import record
from holdfast.model.teardown import APPROVALS, GONE
from holdfast.store.paths import make_state_directory, state_directory

FACTS = "facts.json"
MOST_BYTES = 256 * 1024
"""A box wrote the words in it; no honest one has so much to say of itself."""
MEASURED_WITH = "measured_with"
PROOFS = ("receipts", APPROVALS, GONE)
"""What was proven and approved, which outlives the place."""


@record
class StoredFacts:
    """The facts of a place, None when there are none that count; `problem` says why where there is something."""

    facts: BoxFacts | None = None
    problem: str = ""


def place_directory(name: str) -> str:
    """Where the desk keeps what it knows of a place; it may not be there yet."""
    return f"{state_directory()}/places/{name}"


def fingerprint(place: Place) -> str:
    """The part of a configuration that decides which machine, root and interpreter are meant, as a hash."""
    meant = [place.kind, place.host, place.port, place.root, place.python]
    return hashlib.sha256(json.dumps(meant).encode()).hexdigest()[:16]


def read_facts(place: Place) -> StoredFacts:
    """What was last measured of the place; whatever is damaged or of another configuration counts as absent."""
    path = f"{place_directory(place.name)}/{FACTS}"
    try:
        data = files.read_bytes(path, limit=MOST_BYTES, owners={os.geteuid()})
        measured_with = wire.parse_object(data, path).get(MEASURED_WITH)
        facts = wire.from_bytes(BoxFacts, data, path)
    except FileNotFoundError:
        return StoredFacts()
    except OSError as error:
        return StoredFacts(problem=f"{path} cannot be used: {error.strerror or error}")
    except wire.WireError as error:
        return StoredFacts(problem=f"{path} is damaged: {error}")
    if measured_with != fingerprint(place):
        return StoredFacts(problem=f"{place.name} was measured with another host, root or python than it has now")
    return StoredFacts(facts)


def write_facts(place: Place, facts: BoxFacts) -> None:
    """Keep what was measured of the place as it is configured now.

    Raises:
        NotPermitted: the state directory is not ours alone.
        StorageError: it cannot be written, or is more than a box can have to say.
    """
    directory = make_state_directory(f"places/{place.name}")
    path = f"{directory}/{FACTS}"
    data = wire.to_bytes(facts, **{MEASURED_WITH: fingerprint(place)})
    try:
        if len(data) > MOST_BYTES:
            raise OSError(errno.EFBIG, f"{place.name} says more of itself than {MOST_BYTES} bytes")
        files.commit(path, data)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}", hint="make room there") from error


def forget_place(name: str) -> tuple[str, ...]:
    """Remove what the desk keeps of a place but proofs; answers their paths.

    What cannot be removed is left.

    Raises:
        StorageError: it cannot be taken away.
    """
    directory = place_directory(name)
    aside = files.name_temporary(directory)
    try:
        found = os.listdir(directory)
        os.mkdir(aside, mode=0o700)
        for each in found:
            if each not in PROOFS:
                os.rename(f"{directory}/{each}", f"{aside}/{each}")
        if not (kept := [each for each in PROOFS if each in found]):
            os.rmdir(directory)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise StorageError(f"{directory} cannot be removed: {error.strerror}") from error
    files.remove_tree(aside)
    return tuple(f"{directory}/{each}" for each in kept)
