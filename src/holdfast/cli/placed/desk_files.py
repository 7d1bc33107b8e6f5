"""Files of the desk for one command that it has sent here: read from standard input, written behind its text.

Both lie in a directory of this call alone, which goes with it. In what is printed they have the names that they have
at the desk. The desk's half is `desk.route.carry`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import TextIO, cast

from holdfast.agent.place.carried.files import receive_file, run_with_stage, send_file
from holdfast.cli.errors import wants_json
from holdfast.desk.caller import CALLER
from holdfast.desk.route.carry import MARK, CarriedFile


def run_with_files(words: Sequence[str], carried: Sequence[CarriedFile], dispatch: Callable[[list[str]], int]) -> int:
    """Carry out a command line whose words name `carried`; the exit code.

    Raises:
        StorageError: the files did not come whole, or cannot be kept here.
    """
    return run_with_stage(lambda stage: _run(stage, words, carried, dispatch))


def _run(stage: str, words: Sequence[str], carried: Sequence[CarriedFile], dispatch: Callable[[list[str]], int]) -> int:
    argv, target = list(words), None
    for number, one in enumerate(carried):
        place = f"{stage}/{number}/{one.name}"
        os.mkdir(f"{stage}/{number}", 0o700)
        argv[one.index] = argv[one.index][: one.begin] + place
        if one.size is None:
            target = (one, place)
        else:
            receive_file(place, one.size)
        if one.is_order:
            CALLER.order = place
    _rename_in_output(stage, carried, as_json=wants_json(words))
    code = dispatch(argv)
    if code == 0 and target is not None and os.path.lexists(target[1]):
        sys.stdout.flush()
        return send_file(MARK, target[1], target[0].name)
    return code


def _rename_in_output(stage: str, carried: Sequence[CarriedFile], *, as_json: bool) -> None:
    """Print the names of the desk: in an answer whole paths, beside it as they were typed."""
    whole, typed = {}, {}
    for number, one in enumerate(carried):
        place = f"{stage}/{number}/{one.name}"
        whole[place] = json.dumps(one.path, ensure_ascii=False)[1:-1] if as_json else one.path
        typed[place] = one.shown
    sys.stdout = cast("TextIO", RenamingStream(sys.stdout, whole))
    sys.stderr = cast("TextIO", RenamingStream(sys.stderr, typed))


class RenamingStream:
    """A stream of text in which some paths have other names. What goes to its `buffer` is left alone."""

    def __init__(self, stream: TextIO, names: dict[str, str]) -> None:
        """`names` by what is printed; `stream` stays as it is, and is flushed through this one."""
        self._stream, self._names = stream, names

    def write(self, text: str) -> int:
        """Write a piece of text; a path is never printed in two."""
        shown = text
        for path, name in self._names.items():
            shown = shown.replace(path, name)
        self._stream.write(shown)
        return len(text)

    def __getattr__(self, name: str) -> object:
        """Everything else is the stream's own."""
        return getattr(self._stream, name)
