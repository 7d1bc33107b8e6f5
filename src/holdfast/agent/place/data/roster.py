"""The entry ``roster RUN quick|sum``: what a run's directory holds now, for a desk that pulls it, or did.

``quick`` reads no file: hashes that are not remembered are zeros. Its answer is a line of JSON with the manifest behind
it, deflated; that of ``sum``, which reads what was written since, the line alone.
"""

from __future__ import annotations

import json
import os

from holdfast.agent.place.answer import print_error
from holdfast.agent.view.find import find_run, require_readable
from holdfast.core.pull.choose import Choice
from holdfast.core.pull.stream import pack_manifest
from holdfast.host.files.files import write_all
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, StorageError, UsageError
from holdfast.model.run import SCHEMA

from .run_roster import make_roster, open_memory

HOW = ("quick", "sum")


def main(words: list[str]) -> int:
    """Answer once; the exit code."""
    try:
        if len(words) < 2 or words[1] not in HOW:
            raise UsageError(f"agent roster takes: RUN {'|'.join(HOW)} [ONLY WITHOUT]")
        found = find_run(words[0])
        require_readable(found)
        memory = open_memory(found.run_dir, os.environ)
        only, without = json.loads(words[2]) if len(words) > 2 else ((), ())
        roster, about = make_roster(found.run_dir, Choice(only, without), memory, quick=words[1] == "quick")
        memory.save()
        head = json.dumps({"schema": SCHEMA, **wire.encode(about)}).encode() + b"\n"
        write_all(1, head + (b"" if words[1] == "sum" else pack_manifest(roster.data)))
    except HoldfastError as error:
        return print_error(error)
    except OSError as error:
        return print_error(StorageError(f"{error.filename or 'roster'}: {error.strerror}"))
    return 0
