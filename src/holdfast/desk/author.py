"""Who types at this desk, as it stands in the records of what is ordered and done elsewhere."""

from __future__ import annotations

import os
import pwd


def find_user() -> str:
    """The name of this account, or its number where it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def find_desk() -> str:
    """The name of this machine."""
    return os.uname().nodename


def name_author() -> str:
    """Both, as ``anna@desk``."""
    user, desk = find_user(), find_desk()
    return f"{user}@{desk}" if desk else user
