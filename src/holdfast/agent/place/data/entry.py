"""The entry ``data``: a data set in a directory of this box, for a desk that sends it file by file.

| words | standard input | answer |
|---|---|---|
| ``look DIR`` | its roster, deflated | what would be sent: see `Missing`; nothing is changed |
| ``ask DIR`` | the same | the same; where nothing is missing, the roster stands beside the data afterwards |
| ``receive DIR`` | a stream (`core.code.stream`) | ``files`` and ``bytes`` that arrived; then the roster is there |

DIR is absolute, or begins with ``~`` or ``$NAME`` of this account. A further word is the place's ``env_from``: with
``login`` the variable is that of a login shell, as it is for jobs.
"""

from __future__ import annotations

import os
import sys
import zlib

from holdfast.agent.login_environment import LOGIN, take_login_environment
from holdfast.agent.place.answer import answer
from holdfast.core.code.manifest import MOST_MANIFEST_BYTES, Manifest, parse_manifest
from holdfast.core.job.job_paths import UnknownVariableError, is_own, resolve_path
from holdfast.host.files.code.roster import MOST_BYTES
from holdfast.model.errors import UsageError

from .receive import find_missing, receive_data, settle_found

VERBS = ("look", "ask", "receive")


def main(words: list[str]) -> int:
    """Answer once; the exit code."""
    return answer(lambda: _answer(words))


def _answer(words: list[str]) -> object:
    if len(words) not in (2, 3) or words[0] not in VERBS:
        raise UsageError(f"agent data takes: {'|'.join(VERBS)} DIR [ENV_FROM]")
    verb, directory = words[0], _resolve(words[1], words[2] if len(words) > 2 else "none")
    if verb == "receive":
        return receive_data(directory, lambda size: os.read(sys.stdin.fileno(), size), os.environ)
    roster = _read_roster()
    return (find_missing if verb == "look" else settle_found)(directory, roster, os.environ)


def _resolve(text: str, env_from: str) -> str:
    if not is_own(text):
        raise UsageError(
            f"{text} is relative, and nobody can tell to what", hint=f"write ~/{text}, or an absolute path"
        )
    # Only a variable needs the login shell, which may take seconds to begin.
    environ = take_login_environment(os.environ) if env_from == LOGIN and "$" in text else os.environ
    try:
        return os.path.realpath(resolve_path(text, "/", environ, os.path.expanduser))
    except UnknownVariableError as error:
        raise UsageError(f"{text}: {error}", hint="write the path itself") from error


def _read_roster() -> Manifest:
    unpacker = zlib.decompressobj()
    try:
        packed = sys.stdin.buffer.read(MOST_MANIFEST_BYTES + 1)
        data = unpacker.decompress(packed, MOST_MANIFEST_BYTES + 1)
        return parse_manifest(data, most_bytes=MOST_BYTES)
    except (zlib.error, ValueError) as error:
        raise UsageError(f"refused as a roster: {error}") from error
