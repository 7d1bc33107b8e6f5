"""The claim of a run whose job several boxes share, as a file in its directory."""

from __future__ import annotations

from holdfast.host.files import files
from holdfast.host.files.claims import Claim
from holdfast.model import wire


def write_claim(run_dir: str, claim: Claim, expiry_s: float) -> None:
    """Leave a run its claim: before its supervisor is started."""
    record = {"directory": claim.directory, "number": claim.number, "token": claim.token, "expiry_s": expiry_s}
    files.commit(f"{run_dir}/{wire.CLAIM}", wire.to_bytes(record))


def read_claim(run_dir: str) -> tuple[Claim, float] | None:
    """The claim of a run and its expiry in seconds; None when its job is not shared.

    Raises:
        OSError, WireError: there is one, and it cannot be read.
    """
    path = f"{run_dir}/{wire.CLAIM}"
    try:
        found = wire.parse_object(files.read_bytes(path), path)
    except FileNotFoundError:
        return None
    try:
        claim = Claim(str(found["directory"]), int(found["number"]), str(found["token"]))
        return claim, float(found["expiry_s"])
    except (KeyError, TypeError, ValueError) as error:
        raise wire.WireError(f"{path} is damaged: {error!r}") from error
