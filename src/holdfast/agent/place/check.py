"""The entry ``check``: all checks of an `Order`'s job on this box, as they would be done before it starts.

Words: ``--root DIR``, and ``strict`` where a warning counts as a failure. Answers ``{"report": PreflightReport}``. The
code is laid out as for a run, below a hidden name, and removed again; nothing is started.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.checks.preflight import examine_job
from holdfast.host.files import files
from holdfast.host.files.ownership import make_own_directory
from holdfast.model import wire
from holdfast.model.errors import UsageError
from holdfast.model.finding import Finding
from holdfast.model.record import replace

from .answer import answer, read_input
from .submit import find_environ, lay_out_order, read_order, refuse_absent_tree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.finding import PreflightReport
    from holdfast.model.order import Order

STRICT = "strict"


def main(words: list[str]) -> int:
    """Be the entry ``check``."""
    return answer(lambda: _check(words))


def _check(words: list[str]) -> dict[str, object]:
    if len(words) not in (2, 3) or words[0] != "--root" or words[2:] not in ([], [STRICT]):
        raise UsageError("agent check takes: --root DIR [strict]")
    order = read_order(read_input("the order"))
    environ = find_environ(order, os.environ)
    return {"report": check_order(order, os.path.abspath(words[1]), environ, strict=words[2:] == [STRICT])}


def check_order(order: Order, root: str, environ: Mapping[str, str], *, strict: bool) -> PreflightReport:
    """All checks of an order's job, in a directory as its run would have it.

    Raises:
        HoldfastError: what they need is not here.
    """
    refuse_absent_tree(order, root)
    make_own_directory(root, "the runs directory", "let `root` of the place name another one")
    built = files.name_temporary(f"{root}/{order.run_id}")
    os.mkdir(built, 0o700)
    try:
        found = examine_job(lay_out_order(order, root, built, environ), environ, strict=strict, profile=order.profile)
    finally:
        files.remove_tree(built)
    told = [wire.decode(Finding, _rename(wire.encode(item), f"{built}/")) for item in found.findings]
    return replace(found, findings=tuple(told))


def _rename(finding: dict[str, object], before: str) -> dict[str, object]:
    """A finding about a file of the run by its name in there: that directory is gone when it is read."""
    return {key: value.replace(before, "") if isinstance(value, str) else value for key, value in finding.items()}
