"""Detectors of ends from outside: reboot, container restart, hang-up, kill, preemption, native crash (V7-V11, V14).

Pure. Each answers no only for what was read; a boot id that could not be read is no sign that the box stayed up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.run.stop_record import EXIT_PREEMPTED
from holdfast.diagnosis.evidence import Answer, Detection, KernelKind
from holdfast.diagnosis.logs.survived import find_chain
from holdfast.diagnosis.python_stacks import parse_dump
from holdfast.model.pattern import compile_later
from holdfast.model.record import replace
from holdfast.model.run import Outcome
from holdfast.model.verdict import Clue, Confidence, FailureClass

from .answers import find_words, no, skipped, unread, yes
from .recorded import judge_left
from .signals import describe_signal, name_signal

if TYPE_CHECKING:
    from holdfast.diagnosis.ended.evidence import EndedEvidence

HANG_UP, KILL, TERM, ABORT, PIPE = 1, 9, 15, 6, 13
CRASHES = frozenset({4, 5, 6, 8, 11, 31})
"""Ends that the program's own instructions cause."""
OWN_ENDS = CRASHES | {7, PIPE, 24, 25}
"""Signals that a process earns itself; all others come from somebody."""
KEEPER_GONE = frozenset({"namespace", "supervisor", "pidfd"})
"""Who told how a job ended where its keeper could not any more (`model.identity.WaitStatus.source`)."""
NEAR_S = 10.0
_CRASH, _CRASHED = "Fatal Python error: ", "Current thread 0x"
"""Source: CPython, Modules/faulthandler.c; Python/traceback.c, of the thread that met the fault."""
_LIBRARY = compile_later(r"/(?:site|dist)-packages/|/lib/python\d|^<")
TIMEOUT_SAYS = 124
"""Source: coreutils, timeout(1)."""


def judge_reboot(evidence: EndedEvidence) -> Detection:
    """V7: the box was restarted under it."""
    if evidence.witnessed or not evidence.ran:
        return skipped("V7", FailureClass.REBOOT)
    if not evidence.rebooted.known:
        return unread("V7", FailureClass.REBOOT, Clue(f"whether the box was restarted: {evidence.rebooted.unread}"))
    if evidence.rebooted.value:
        clue = Clue("the kernel's boot id is another one, and nobody saw the job end", "boot_id")
        return yes("V7", FailureClass.REBOOT, Confidence.CERTAIN, clue, gotchas=("U3",))
    return no("V7", FailureClass.REBOOT, Clue("the box was not restarted: its boot id is the same", "boot_id"))


def judge_container(evidence: EndedEvidence) -> Detection:
    """V7C: the container was started anew under it; its boot id is the box's and stays."""
    if evidence.witnessed or not evidence.ran:
        return skipped("V7C", FailureClass.CONTAINER_RESTART)
    if evidence.rebooted.value:
        return no("V7C", FailureClass.CONTAINER_RESTART, Clue("the whole box was restarted", "boot_id"))
    if not evidence.init_restarted.known:
        words = f"whether process 1 is the same: {evidence.init_restarted.unread}"
        return unread("V7C", FailureClass.CONTAINER_RESTART, Clue(words, "/proc/1/stat"))
    if evidence.init_restarted.value:
        clue = Clue("process 1 was started later than the run, under the same boot id", "/proc/1/stat")
        return yes("V7C", FailureClass.CONTAINER_RESTART, Confidence.CERTAIN, clue, gotchas=("U3",))
    return no("V7C", FailureClass.CONTAINER_RESTART, Clue("process 1 is the same as at launch", "/proc/1/stat"))


def judge_hang_up(evidence: EndedEvidence) -> Detection:
    """V8: its terminal or login session went, and with it the job."""
    words = find_words(evidence, FailureClass.HANG_UP)
    if evidence.signal == HANG_UP:
        session = _describe_session(evidence)
        clues = [Clue(describe_signal(HANG_UP), "status.json"), *session, *(words.evidence_for if words else ())]
        # 129 may be a program's own code (git's for wrong usage).
        told = words is not None or (session and evidence.code is None)
        sure = Confidence.CERTAIN if told else Confidence.LIKELY
        return yes("V8", FailureClass.HANG_UP, sure, *clues, gotchas=("U3",))
    if words is not None:
        clues = [*words.evidence_for, *_describe_session(evidence)]
        return yes("V8", FailureClass.HANG_UP, words.confidence, *clues, gotchas=("U3",))
    if evidence.signal is None and not evidence.log.known:
        return unread("V8", FailureClass.HANG_UP, Clue(f"its output: {evidence.log.unread}", "output.log"))
    return no("V8", FailureClass.HANG_UP, Clue("no SIGHUP ended it", "status.json"))


def _describe_session(evidence: EndedEvidence) -> tuple[Clue, ...]:
    session = evidence.session
    signs = [
        words
        for key, words in (
            ("tty_nr", "it had a terminal"),
            ("ssh", "it was started over ssh"),
            ("login_scope", "it lived in a login session's scope"),
        )
        if session.get(key)
    ]
    if session.get("hangup_ignored") and signs:
        signs.append("SIGHUP was ignored at launch (nohup), which a program with a handler of its own undoes")
    return (Clue(", ".join(signs), "manifest.json"),) if signs else ()


def judge_kill(evidence: EndedEvidence) -> Detection:
    """V9: a signal from outside whose sender nothing here names. Never an OOM kill: those have counters (FAIL-14)."""
    number = evidence.signal
    if number is None or number in OWN_ENDS or not evidence.ran:
        return skipped("V9", FailureClass.KILLED)
    if evidence.ended.request is not None:
        return no("V9", FailureClass.KILLED, Clue("holdfast itself ended it, on request", "state.json"))
    if evidence.code == EXIT_PREEMPTED and judge_left(evidence).answer is Answer.YES:
        return no("V9", FailureClass.KILLED, Clue("its training left by itself, and wrote why", "stop.json"))
    if evidence.own_kills.value and number == KILL and not evidence.survived_kills:
        return no("V9", FailureClass.KILLED, Clue("the kernel itself killed, for lack of memory", "memory.events"))
    asked_memory = evidence.own_kills.known or (evidence.host_kills.known and not evidence.host_kills.value)
    sure = Confidence.LIKELY if asked_memory or number not in (KILL, TERM) else Confidence.POSSIBLE
    clues = [Clue(f"{name_signal(number)} ended it, and holdfast had not sent it", "status.json")]
    if evidence.code is not None:
        text = f"exit code {evidence.code}: a shell's word for {name_signal(number)}, unless the job chose it itself"
        clues = [Clue(text, "status.json")]
    status = evidence.ended.status
    if number == KILL and status is not None and status.source in KEEPER_GONE:
        clues.append(
            Clue("holdfast's own process that kept the job was killed, too: with it, or before it", "status.json")
        )
    if evidence.scheduler:
        clues.append(Clue(f"it ran within {evidence.scheduler}, whose scheduler may have ended it", "manifest.json"))
    if evidence.own_kills.value and number == KILL:
        text = "the kernel had killed within it for lack of memory, well before the end"
        clues.append(Clue(text, "memory.events"))
    unknown = (Clue("who sent it: only a handler in the job or a trace by root sees the sender"),)
    facts = {"signal": name_signal(number)}
    return yes("V9", FailureClass.KILLED, sure, *clues, unknown=unknown, gotchas=("U3",), facts=facts)


def blame_sender(words: Detection, evidence: EndedEvidence) -> Detection:
    """What an output says of a worker that SIGKILL ended, where no counter saw a kill for lack of memory (FAIL-14).

    Only possible where the job ended by something else: then it may have lived on without that worker.
    """
    log, line = evidence.log.value, words.facts.get("line", "")
    ended_it = log is not None and line in (log.exception[:300], *find_chain(log))
    alone = evidence.signal is None and evidence.ended.request is None
    pid = words.facts.get("pid", "")
    whom = f"its worker (pid {pid})" if pid else "a process of its own"
    counted = "memory.events" if evidence.own_kills.known else "/proc/vmstat"
    clue = Clue("the counter of kills for lack of memory did not move: somebody sent SIGKILL to it", counted)
    return replace(
        words,
        kind=FailureClass.KILLED,
        confidence=Confidence.LIKELY if ended_it and alone else Confidence.POSSIBLE,
        evidence_for=(*words.evidence_for, clue),
        unknown=(*words.unknown, Clue("who sent it: only a trace by root sees the sender")),
        gotchas=("U3",),
        facts={**words.facts, "signal": f"SIGKILL to {whom}"},
    )


def leave_open(words: Detection, evidence: EndedEvidence, told: dict[str, str]) -> Detection:
    """What a pool says of a worker that was gone, where no counter saw a kill for lack of memory: all but that."""
    counted = "memory.events" if evidence.own_kills.known else "/proc/vmstat"
    clue = Clue("the counter of kills for lack of memory did not move: something else ended its worker", counted)
    return replace(
        words,
        kind=FailureClass.KILLED,
        evidence_for=(*words.evidence_for, clue),
        unknown=(*words.unknown, Clue("how its worker ended: the pool does not say")),
        gotchas=(),
        facts={**words.facts, "remedy": f"{told['less']}, or {told['more']}"},
    )


def judge_scheduler(evidence: EndedEvidence) -> Detection:
    """V10: a scheduler or provider took the place back: by its own words, or a TERM within its allocation."""
    for kind in (FailureClass.PREEMPTED, FailureClass.TIMED_OUT):
        words = find_words(evidence, kind)
        if words is not None:
            return yes("V10", kind, words.confidence, *words.evidence_for, facts=dict(words.facts))
    if evidence.scheduler and evidence.signal in (TERM, KILL) and evidence.ended.request is None:
        clue = Clue(f"{name_signal(evidence.signal or 0)} within {evidence.scheduler}", "manifest.json")
        return yes("V10", FailureClass.PREEMPTED, Confidence.POSSIBLE, clue)
    if evidence.code == TIMEOUT_SAYS:
        clue = Clue(f"exit code {TIMEOUT_SAYS}: what timeout(1) says when the time that it gave is over", "status.json")
        return yes("V10", FailureClass.TIMED_OUT, Confidence.POSSIBLE, clue)
    if not evidence.log.known:
        return unread("V10", FailureClass.PREEMPTED, Clue(f"its output: {evidence.log.unread}", "output.log"))
    return no("V10", FailureClass.PREEMPTED)


def judge_crash(evidence: EndedEvidence) -> Detection:
    """V11: native code crashed."""
    number = evidence.signal
    if number not in CRASHES:
        words = find_words(evidence, FailureClass.NATIVE_CRASH)
        if words is None:
            return skipped("V11", FailureClass.NATIVE_CRASH)
        return yes("V11", FailureClass.NATIVE_CRASH, words.confidence, *words.evidence_for, facts=dict(words.facts))
    clues = [Clue(describe_signal(number), "status.json")]
    unknown: tuple[Clue, ...] = ()
    facts = {}
    for event in evidence.find_kernel_events(KernelKind.SEGFAULT):
        near = evidence.kernel_until_s is None or event.seconds > evidence.kernel_until_s - 60.0 - NEAR_S
        if evidence.is_ours(event) or near:
            whose = "" if evidence.is_ours(event) else "at that time, "
            clues.append(Clue(f"{whose}{event.text}"[:300], "kernel log", ""))
            facts["library"] = event.values.get("library") or "unknown"
    if (place := _find_place(evidence)) is not None:
        clues.append(Clue(f"it was called from {place}", "output.log"))
        facts["called"] = f"the Python line that called it is {place}"
    if evidence.kernel_unread:
        unknown = (Clue(f"which library crashed, from the kernel log: {evidence.kernel_unread}", "kernel log"),)
    # An abort is also how a watchdog or an uncaught exception ends a program: then its words say more.
    # A code above 128 is a shell's word for a signal, but any program may choose it; the kernel's log settles that.
    told = evidence.code is None or any(map(evidence.is_ours, evidence.find_kernel_events(KernelKind.SEGFAULT)))
    sure = Confidence.CERTAIN if told and number != ABORT else Confidence.LIKELY
    if number == ABORT and any(_names_cause(item) for item in evidence.words):
        sure = Confidence.POSSIBLE
    return yes("V11", FailureClass.NATIVE_CRASH, sure, *clues, unknown=unknown, facts=facts)


def _find_place(evidence: EndedEvidence) -> str | None:
    """Where in Python the thread stood that crashed, by what faulthandler wrote: in the job's own code, where it is.

    None without that: stacks that were written before the crash (a watchdog's, a look's) are of another moment.
    """
    log = evidence.log.value
    _, crashed, written = ("" if log is None else log.tail).rpartition(_CRASH)
    _, found, dump = written.partition(_CRASHED)
    threads = parse_dump(0, found + dump).threads if crashed and found else ()
    if not threads or not threads[0]:
        return None
    frame = next((frame for frame in threads[0] if not _LIBRARY.search(frame.file)), threads[0][0])
    return f"{frame.file}, line {frame.line}"


def _names_cause(words: Detection) -> bool:
    thrown = words.facts.get("line", "").startswith("what():") and words.detector.startswith("log.card.")
    said = words.answer is Answer.YES and (thrown or words.confidence is not Confidence.POSSIBLE)
    return said and words.kind is not FailureClass.NATIVE_CRASH


def judge_supervisor(evidence: EndedEvidence) -> Detection:
    """V14: holdfast's own processes ended first, so that nobody saw how the job did."""
    if evidence.witnessed or not evidence.ran:
        return skipped("V14", FailureClass.SUPERVISOR_LOST)
    if evidence.ended.outcome is not Outcome.LOST:
        return no("V14", FailureClass.SUPERVISOR_LOST)
    clue = Clue("supervisor and keeper were gone, and no status of the job was left", "state.json")
    unknown = (Clue("how the job itself ended", "status.json"),)
    return yes("V14", FailureClass.SUPERVISOR_LOST, Confidence.LIKELY, clue, unknown=unknown, gotchas=("U3",))
