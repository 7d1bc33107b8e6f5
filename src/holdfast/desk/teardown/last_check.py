"""What was last said of a machine that was given up: ``places/PLACE/gone.json`` of the desk."""

from __future__ import annotations

from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.place import Place
from holdfast.model.teardown import GONE as FILE
from holdfast.model.teardown import GoneCheck
from holdfast.store.paths import make_state_directory, state_directory

from .plan import name_machine

GONE, STOPPED, THERE, UNKNOWN = "gone", "stopped", "there", "unknown"
"""`GoneCheck.state`."""


def read_check(place: Place) -> GoneCheck | None:
    """What was last said of the machine that the place is now; None where nothing was, or it cannot be read."""
    path = f"{state_directory()}/places/{place.name}/{FILE}"
    try:
        found = wire.from_bytes(GoneCheck, files.read_bytes(path), path)
    except (OSError, wire.WireError):
        return None
    return found if found.host in ("", name_machine(place)) else None


def keep_check(place: Place, found: GoneCheck) -> None:
    """Keep what was said; "could not be told" takes nothing back that was told before.

    Raises:
        StorageError: it cannot be written.
    """
    before = read_check(place)
    if found.state == UNKNOWN and before is not None and before.state in (GONE, STOPPED):
        return
    path = f"{make_state_directory(f'places/{place.name}')}/{FILE}"
    try:
        files.commit(path, wire.to_bytes(found))
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}", hint="make room there") from error
