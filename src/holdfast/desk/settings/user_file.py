"""The files of this account's settings in ``$XDG_CONFIG_HOME/holdfast``: ``places.toml``, ``config.toml``, profiles.

They say which programs run where, so they are read only while nobody else could have written them. Changes replace a
file whole, and one at a time; what the user wrote in it stays. A link to the file stays a link.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from holdfast.desk.places.regular_file import read_own_text
from holdfast.desk.toml import MAX_BYTES, Node, NotTomlError, parse_toml
from holdfast.host.files import files
from holdfast.host.files.ownership import make_own_directory
from holdfast.model.errors import StorageError, UsageError

Change = Callable[[str, str], str]
"""Makes a new text of a text and the path that it is of."""


def config_home() -> str:
    """The directory of this account's own configuration of holdfast, whether or not it is there.

    Source: XDG Base Directory Specification 0.8 (relative values are to be ignored).
    """
    stated = os.environ.get("XDG_CONFIG_HOME", "")
    base = stated if os.path.isabs(stated) else os.path.expanduser("~/.config")
    return f"{base}/holdfast"


def change_text(path: str, says: str, change: Change) -> str:
    """Replace the text of the file by what `change` makes of text and path, alone; answers the path.

    Raises:
        NotPermitted, StorageError, UsageError: as of `read_own_text`, or it cannot be written.
    """
    directory = os.path.dirname(path)
    what = f"the directory of {os.path.basename(path)}"
    make_own_directory(directory, what, "let XDG_CONFIG_HOME name a place of your own")
    with files.alone_in(directory):
        try:
            data = change(read_own_text(path, says), path).encode()
        except UnicodeEncodeError:
            raise UsageError(f"{path}: what is to stand there is no UTF-8", hint="nothing was changed") from None
        except NotTomlError as error:
            raise UsageError(str(error), hint="nothing was changed: mend it there first") from error
        if len(data) > MAX_BYTES:
            raise UsageError(f"{path}: would be larger than 1 MiB")
        try:
            files.commit(os.path.realpath(path), data)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}", hint="nothing was changed") from error
    return path


def parse_text(text: str, path: str) -> Node:
    """The text as a tree.

    Raises:
        UsageError: it is not TOML.
    """
    try:
        return parse_toml(text, path)
    except NotTomlError as error:
        raise UsageError(str(error), hint="mend it there; runs and places are not affected") from error
