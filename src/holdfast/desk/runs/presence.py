"""Whether this machine is a desk at all: looked at before anything of the desk is loaded, so that nobody else pays."""

from __future__ import annotations

import os
import sys

from holdfast.desk.caller import CALLER
from holdfast.store.paths import state_directory


def has_places() -> bool:
    """Whether places are configured, or were used, or runs can be nowhere else.

    Never where a desk has sent this command line.
    """
    if CALLER.place is not None:
        return False
    if sys.platform != "linux":
        return True
    stated = os.environ.get("XDG_CONFIG_HOME", "")  # as `settings.user_file.config_home`, which loads much
    config = stated if os.path.isabs(stated) else os.path.expanduser("~/.config")
    return os.path.exists(f"{config}/holdfast/places.toml") or os.path.exists(f"{state_directory()}/places")
