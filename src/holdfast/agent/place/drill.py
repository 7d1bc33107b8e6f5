"""The entry ``drill``: a job that a desk has sent is rehearsed on this box (`agent.drill`).

Words: ``--root DIR`` and a `PlacedDrill` as JSON. An `Order` comes on standard input; the answer is ``{"report":
DrillReport}``, and how far it has come is said on standard error. The code is laid out below a hidden name, and removed
at the end, when nothing of the rehearsal runs any more: also where the connection ends.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from holdfast.agent.drill.rehearsal import rehearse_job
from holdfast.agent.drill.report import PlacedDrill
from holdfast.host.files import files
from holdfast.host.files.ownership import make_own_directory
from holdfast.model import wire
from holdfast.model.errors import EXIT_STOPPED, UsageError

from .answer import answer, read_input
from .submit import find_environ, lay_out_order, read_order, refuse_absent_tree

if TYPE_CHECKING:
    from holdfast.agent.drill.report import DrillReport


def main(words: list[str]) -> int:
    """Be the entry ``drill``."""
    signals: list[int] = []
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.append(number))
    try:
        return answer(lambda: {"report": _rehearse(words, signals)})
    except KeyboardInterrupt:
        return EXIT_STOPPED


def _rehearse(words: list[str], signals: list[int]) -> DrillReport:
    if len(words) != 3 or words[0] != "--root":
        raise UsageError("agent drill takes: --root DIR and what is wanted as JSON")
    root = os.path.abspath(words[1])
    try:
        asked = wire.decode(PlacedDrill, wire.parse_object(words[2].encode(), "what is wanted"), "what is wanted")
    except wire.WireError as error:
        raise UsageError(f"agent drill: {error}") from error
    order = read_order(read_input("the order"))
    environ = find_environ(order, os.environ)
    refuse_absent_tree(order, root)
    make_own_directory(root, "the runs directory", "let `root` of the place name another one")
    built = files.name_temporary(f"{root}/{order.run_id}")
    os.mkdir(built, 0o700)
    try:
        return rehearse_job(
            lay_out_order(order, root, built, environ),
            asked.wanted,
            inexact=asked.inexact,
            keep=asked.keep,
            tell=_tell,
            interrupted=lambda: bool(signals),
            environ=environ,
        )
    finally:
        files.remove_tree(built)


def _tell(text: str) -> None:
    try:
        sys.stderr.write(f"holdfast: {text}\n")
        sys.stderr.flush()
    except OSError:
        return  # nobody hears it; the signal that follows ends the rehearsal
