"""Detector of limits of a process: CPU seconds, file size, open files, address space, tasks (V4). Pure.

An attempt has the limits of the shell that started it, but for those that its job states.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.evidence import Detection
from holdfast.model.pattern import compile_later
from holdfast.model.record import record, replace
from holdfast.model.units import format_bytes
from holdfast.model.verdict import Clue, Confidence, FailureClass

from .answers import find_words, no, unread, unread_log, yes
from .signals import describe_signal

if TYPE_CHECKING:
    from holdfast.diagnosis.ended.evidence import EndedEvidence

XCPU, XFSZ = 24, 25
LIMIT = FailureClass.RESOURCE_LIMIT
ENOUGH_FILES = 65536
_OF_TASKS = frozenset({"log.limit.processes", "log.limit.threads"})
"""What the output says where the system gave it no further process or thread."""
_OF_FILES = compile_later(r"(?i)\btoo many open files\b(?! in system)|\[Errno 24\]|\bEMFILE\b|\bancdata\b")
_WATCHES = "log.limit.watches"
_OF_SIZE = compile_later(r"\[Errno 27\]|(?i:file too large|file size limit)")
_OF_SECONDS = compile_later(r"(?i)cpu time limit")


BEHIND_THE_SHELL = "ulimit or setrlimit in the job, its container, its scheduler"


@record
class ShellLimit:
    """A limit that only a shell raises: its name, its option of ``ulimit``, its key of the baseline.

    `elsewhere`: what sets it apart from the shell, of which the baseline says nothing.
    """

    name: str
    option: str
    key: str
    elsewhere: str = BEHIND_THE_SHELL


SECONDS = ShellLimit("the CPU-time limit", "-t", "cpu")
SIZE = ShellLimit(
    "the file-size limit", "-f", "fsize", f"{BEHIND_THE_SHELL}; or a file system that takes no larger file"
)
SPACE = ShellLimit("the address-space limit", "-v", "as")


def judge_rlimits(evidence: EndedEvidence) -> Detection:
    """V4: a limit of the process: CPU seconds, file size, open files, address space, tasks."""
    if evidence.signal in (XCPU, XFSZ):
        limit = SECONDS if evidence.signal == XCPU else SIZE
        clue = Clue(describe_signal(evidence.signal), "status.json")
        sure = Confidence.CERTAIN if evidence.code is None else Confidence.LIKELY
        return yes("V4", LIMIT, sure, clue, facts={"action": _raise_in_shell(limit, evidence)})
    bound = evidence.rlimits.get("as")
    if isinstance(bound, int) and re.search(r"MemoryError|bad_alloc|Cannot allocate memory", evidence.exception):
        clue = Clue(f"{evidence.exception}; the address space is limited to {format_bytes(bound)}", "manifest.json")
        return yes("V4", LIMIT, Confidence.LIKELY, clue, facts={"action": _raise_in_shell(SPACE, evidence)})
    words = find_words(evidence, LIMIT)
    if words is not None and words.detector in _OF_TASKS and evidence.tasks_limit is not None:
        clues = (*words.evidence_for, Clue(f"limits.tasks of the job: {evidence.tasks_limit}", "run.json"))
        facts = {**words.facts, "action": _raise_tasks(evidence)}
        return yes("V4", LIMIT, words.confidence, *clues, gotchas=words.gotchas, facts=facts)
    if not evidence.log.known:
        return unread("V4", LIMIT, *unread_log(evidence))
    return no("V4", LIMIT)


def explain_limit(words: Detection, evidence: EndedEvidence) -> Detection:
    """Words of a limit with what raises that one for this run; as they are where they name none of these."""
    line = words.facts.get("line", "")
    if words.detector != _WATCHES and _OF_FILES.search(line):
        action = _raise_files(evidence)
    elif _OF_SIZE.search(line):
        action = _raise_in_shell(SIZE, evidence)
    elif _OF_SECONDS.search(line):
        action = _raise_in_shell(SECONDS, evidence)
    else:
        return words
    return replace(words, facts={**words.facts, "action": action})


def _raise_in_shell(limit: ShellLimit, evidence: EndedEvidence) -> str:
    """What to do about a limit that no job states: it comes from the shell, or from what came between."""
    restart, option = _restart(evidence), f"ulimit {limit.option}"
    bound = evidence.rlimits.get(limit.key, 0)
    if bound is None:
        return (
            f"see what sets {limit.name} ({limit.elsewhere}): the shell that started it had none ({option}: "
            f"unlimited); then: {restart}"
        )
    now = ""
    if isinstance(bound, int) and bound > 0:
        now = f" (now {f'{bound} s' if limit is SECONDS else format_bytes(bound)})"
    return (
        f"raise {limit.name}{now}: `{option} unlimited` in a shell at its box, and in the same shell: {restart}; an "
        "attempt has the limits of the shell that starts it. Where that shell refuses, begin with a new login; what a "
        "new one refuses, too, is a hard limit, which an administrator raises (limits.conf)"
    )


def _raise_files(evidence: EndedEvidence) -> str:
    """What to do about the limit of open files: of the job, else of the shell; above the hard one nobody gets by."""
    known = (evidence.files_limit, evidence.rlimits.get("nofile"))
    now = next((number for number in known if isinstance(number, int) and number > 0), None)
    hard = evidence.rlimits.get("nofile_hard")
    wanted = max(ENOUGH_FILES, 2 * (now or 0))
    held = now is not None and isinstance(hard, int) and now >= hard
    if isinstance(hard, int) and not held:
        wanted = min(wanted, hard)
    told = "how many it needs is not known" if now is None else f"now {now}; how many it needs is not known"
    if held:
        told += f", and {now} is the hard limit, which only an administrator raises: limits.conf, LimitNOFILE="
    return (
        f"have fewer open at once (fewer workers), or raise limits.open_files ({told}; try {wanted}): "
        f"{_restart(evidence)} --limit-open-files {wanted}"
    )


def _raise_tasks(evidence: EndedEvidence) -> str:
    """What to do about the limit of processes and threads that the job itself asked for."""
    limit = evidence.tasks_limit or 0
    return (
        f"have fewer threads or workers (OMP_NUM_THREADS), or raise limits.tasks, which counts both (now {limit}; how "
        f"many it needs is not known; try {2 * limit}): {_restart(evidence)} --limit-tasks {2 * limit}"
    )


def _restart(evidence: EndedEvidence) -> str:
    return f"holdfast restart {evidence.run_id}".rstrip()
