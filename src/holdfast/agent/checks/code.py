"""Checks of the code that a desk sent: every file is what was meant, by the hash of its tree (PRE-13)."""

from __future__ import annotations

import os
from collections.abc import Iterator

from holdfast.agent.view.observe import list_attempts
from holdfast.agent.view.source_change import read_origin
from holdfast.core.code.manifest import PROGRAM_NAMES
from holdfast.core.control_characters import clean
from holdfast.host.files.code import store
from holdfast.model import wire
from holdfast.model.finding import Finding
from holdfast.model.order import CodeRef
from holdfast.model.units import format_count

from .context import CheckContext, failed, passed, warned

MOST_NAMED = 5
ANEW = "submit it again from the desk, which sends what is damaged"


def check_code(situation: CheckContext) -> Iterator[Finding]:
    """The run's copy of its code, or the read-only tree that it runs in, read again and compared with its manifest."""
    if situation.run_dir is None:
        return
    stored = read_origin(situation.run_dir).get("code")
    if stored is None:
        return
    try:
        code = wire.decode(CodeRef, stored)
        root = os.path.dirname(situation.run_dir)
        store.check_store(root)
        directory = store.tree_dir(root, code.tree)
        manifest = store.read_manifest(directory, code.tree)
        copy = f"{situation.run_dir}/{store.WORK}"
        is_own = os.path.isdir(copy)
        place = copy if is_own else f"{directory}/{store.FILES}"
        found = list(store.compare_tree(place, manifest))
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) else str(error)
        yield failed("code", "code", f"what was sent cannot be compared with what was meant: {words}", ANEW)
        return
    later = is_own and (situation.ends_first or max(list_attempts(situation.run_dir), default=1) > 1)
    yield from _judge(place, f"{directory}/{store.FILES}", found, later=later)
    if not found:
        count = format_count(len(manifest.entries), "file is that", "files are those")
        yield passed("code", place, f"{count} of tree {code.tree}")


def _judge(place: str, whole: str, found: list[store.Difference], *, later: bool) -> Iterator[Finding]:
    extra = [one for one in found if one.words == store.EXTRA]
    changed = [one for one in found if one.words != store.EXTRA]
    # A run's own copy may be written by the run: of later attempts only what is a program must be as it was sent.
    wrong = [one for one in changed if not later or one.path.endswith(PROGRAM_NAMES)]
    written = [one for one in changed if one not in wrong]
    for one in wrong[:MOST_NAMED]:
        remedy = f"cp {whole}/{one.path} {place}/{one.path}; or {ANEW}" if place != whole else ANEW
        yield failed("code", clean(f"{place}/{one.path}"), f"is not what was sent: {one.words}", clean(remedy))
    if len(wrong) > MOST_NAMED:
        count = format_count(len(wrong) - MOST_NAMED, "more file is", "more files are")
        yield failed("code", place, f"{count} not what was sent", ANEW)
    for one in written[:MOST_NAMED]:
        seen = f"is not what was sent ({one.words}); an earlier attempt may have written it"
        yield warned("code.written", clean(f"{place}/{one.path}"), seen, "see whether it was the job")
    if extra and not later:
        names = ", ".join(clean(one.path) for one in extra[:MOST_NAMED])
        seen = f"{format_count(len(extra), 'file is there that was', 'files are there that were')} not sent: {names}"
        yield warned("code.extra", place, seen, "see whether a program would load one of them")
