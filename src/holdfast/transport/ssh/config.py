"""What the user's own configuration says of a host, as ``ssh -G`` prints it; nothing is read or parsed by ourselves."""

from __future__ import annotations

import subprocess

from holdfast.model.errors import Refused, Unreachable
from holdfast.model.place import Place
from holdfast.model.record import field, record

from .command import find_program, target

LIMIT_S = 20.0
"""``Match exec`` of a configuration may run programs of the user's."""
_NEUTRAL = {"remotecommand": "none", "sessiontype": "default", "stdinnull": "no", "forkafterauthentication": "no"}
"""Settings that would take the session from us, and their values that do not. Older clients do not print them."""


@record
class SshConfig:
    """The settings that we look at. `text` is all of it: two calls with equal text may share a connection."""

    text: str = ""
    values: dict[str, str] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """The name or address that is connected to."""
        return self.values.get("hostname", "")

    @property
    def port(self) -> str:
        """The port that is connected to."""
        return self.values.get("port", "22")

    @property
    def own_control_path(self) -> str | None:
        """The user's own ControlPath for this host, if one is configured."""
        path = self.values.get("controlpath", "none")
        return None if path == "none" else path

    @property
    def overrides(self) -> list[str]:
        """Options against settings that would take the session from us, for those that are set."""
        found = []
        for name, neutral in _NEUTRAL.items():
            if self.values.get(name, neutral) != neutral:
                found += ["-o", f"{name}={neutral}"]
        # Without ControlPersist the first of our calls would have to stay for as long as others share its connection.
        if self.own_control_path and self.values.get("controlpersist", "no") == "no":
            found += ["-o", "ControlMaster=no"]
        return found


def read_config(place: Place) -> SshConfig:
    """Ask ssh what it would do for a place; nothing is connected to.

    Raises:
        Unreachable: there is no ssh client, or it did not answer.
        Refused: it does not take the configuration.
    """
    details: dict[str, object] = {"place": place.name, "why": "configuration"}
    program = find_program()
    try:
        done = subprocess.run(
            [program, "-T", "-G", *target(place)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
            start_new_session=True,
        )
    except OSError as error:
        raise Unreachable(
            f"{place.name}: the program {program!r} cannot be started: {error.strerror}",
            hint="install OpenSSH's client (Debian: openssh-client), or name one in HOLDFAST_SSH",
            details=details,
        ) from error
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"{place.name}: `ssh -G` gave no answer within {LIMIT_S:g} s", details=details) from error
    if done.returncode != 0:
        seen = " ".join(done.stderr.decode(errors="replace").split())[:500]
        raise Refused(
            f"{place.name}: ssh does not take its configuration: {seen}",
            hint="mend the file that it names; `ssh -G HOST` shows the same",
            details=details,
        )
    text = done.stdout.decode(errors="replace")
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        values.setdefault(name.lower(), value.strip())
    return SshConfig(text=text, values=values)
