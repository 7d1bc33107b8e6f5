"""Facts that a person has verified again: their day and source, in the user's own file of the profile."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.profile.schema import TABLES, check_file
from holdfast.desk.settings.toml_edit import set_value
from holdfast.desk.settings.user_file import change_text
from holdfast.desk.toml import load_plain
from holdfast.model.errors import UsageError

from .read import SUFFIX, today, user_directory


def write_verified(name: str, keys: Sequence[str], source: str) -> str:
    """Date these facts of the profile `name` today, in the user's own file; answers its path.

    Raises:
        UsageError: the file is written so that a person has to change it, or `source` cannot stand there.
        NotPermitted, StorageError: it cannot be read or written.
    """

    def change(text: str, path: str) -> str:
        for key in keys:
            table = key if key.partition(".")[0] in TABLES else f"facts.{key}"
            text = set_value(text, f"{table}.source", source, path)
            text = set_value(text, f"{table}.verified_on", today(), path)
        problems = check_file(load_plain(text), own=True)[1]
        if problems:
            raise UsageError(f"{path}: {'.'.join(problems[0].path)}: {problems[0].words}", hint="nothing was changed")
        return text

    return change_text(f"{user_directory()}/{name}{SUFFIX}", "what is done before jobs", change)
