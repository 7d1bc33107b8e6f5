"""The environment of a login shell of this account, for the jobs of a place with ``env_from = "login"``.

A command that comes over ssh has none of what a login shell sets up: no conda, no modules, no uv on its PATH. It is
read once in a boot, and anew by `holdfast place probe`. It lies in memory only, in the account's private directory
(0700, the file 0600), never on a disk: it may hold secrets. A home may be that of many boxes, so it is no place either.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from holdfast.core.digest import sha256_hex
from holdfast.host.clock import utc_now
from holdfast.host.files import fallback, files
from holdfast.host.process.login_shell import LoginShellSilent, find_login_shell, read_login_environment
from holdfast.model.errors import PreflightFailed, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

LOGIN = "login"
READ_AT = "HOLDFAST_LOGIN_ENVIRONMENT"
"""In such an environment: when it was read (ISO UTC), so that a check can say where it looked."""
MOST_BYTES = 16 << 20
_OWN = ("HOLDFAST_", "SSH_")
"""Variables of the call and of its connection: the shell is begun without them."""


def choose_environ(env_from: str, environ: Mapping[str, str]) -> Mapping[str, str]:
    """The environment that an order's job is started from; `env_from` is the order's.

    Raises:
        UsageError: it asks for one that this version does not know.
        PreflightFailed: it asks for a login shell's, and that gives none.
    """
    if env_from == LOGIN:
        return take_login_environment(environ)
    if env_from != "none":
        raise UsageError(f"env_from = {env_from!r} is none that this holdfast knows")
    return environ


def take_login_environment(environ: Mapping[str, str], *, anew: bool = False) -> dict[str, str]:
    """The environment of a login shell, with holdfast's own variables as `environ` has them; `anew` reads it again.

    Raises:
        PreflightFailed: the shell gives none; says why.
    """
    path = _path(environ)
    if anew and path is not None:
        # A shell that gives none now must not go on being answered for by what it gave before.
        files.remove_quietly(path)
    kept = None if path is None else _read_kept(path)
    if kept is None:
        kept = _read(environ)
        if path is not None:
            _keep(path, kept)
    return {**kept, **{name: value for name, value in environ.items() if name.startswith("HOLDFAST_")}}


def _read(environ: Mapping[str, str]) -> dict[str, str]:
    base = {name: value for name, value in environ.items() if not name.startswith(_OWN)}
    shell = find_login_shell(environ)
    try:
        found = read_login_environment(base, shell=shell)
    except LoginShellSilent as error:
        hint = 'mend what it does at login (see: ssh HOST, then `exit`), or take env_from = "login" out of places.toml'
        raise PreflightFailed(f"the login shell gives no environment: {error}", hint=hint) from error
    return {**found, READ_AT: utc_now()}


def _keep(path: str, found: Mapping[str, str]) -> None:
    """Where it cannot be kept it is read anew each time."""
    try:
        files.commit(path, json.dumps(dict(found)).encode("ascii"), durable=False)
    except OSError:
        return


def _read_kept(path: str) -> dict[str, str] | None:
    try:
        found = json.loads(files.read_bytes(path, limit=MOST_BYTES))
    except (OSError, ValueError):
        return None
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else None


def _path(environ: Mapping[str, str]) -> str | None:
    base = fallback.private_directory(fallback.MEMORY_ROOTS)
    # Of one home and shell: either may be another one in a container of the same account.
    name = sha256_hex(os.fsencode(f"{environ.get('HOME', '')}\0{find_login_shell(environ)}"))[:16]
    return None if base is None else f"{base}/login-{name}.environment"
