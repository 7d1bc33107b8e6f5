"""Judges whether a job went on after words that name a cause: then they are not why it ended. Pure.

A full card that was caught and answered by a smaller batch, or a cache that could not be written, stands in the output
as plainly as the exception that ended the job. What tells them apart is what came after: ordinary lines of the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from holdfast.diagnosis.evidence import LineRole, LogFacts, LogMatch
from holdfast.model.pattern import compile_later
from holdfast.model.verdict import FailureClass

from .endings import PROGRESS
from .exceptions import EXCEPTION, HEADER, judge_exception, read_traceback
from .lines import clean_line

MORE_THAN = 50
"""Ordinary lines that a library may still write while a job ends (advice, a summary); more are the job going on."""
FEW_AFTER = 2
FEW_STEPS = 10
ANNOUNCED_WITHIN = 30
_PAST = compile_later(
    r"(?i)\b(?:previous|earlier|prior|last (?:error|failure|attempt|run|night|week|time|seen)|yesterday"
    r"|replay(?:ing|ed)?"
    r"|old(?:er)? (?:log|run|error|attempt)|history|(?:minutes?|hours?|days?|weeks?) ago)\b|\.(?:log|out|err|txt):\d+:"
    r"|^\s*#(?!\s*(?:There is |A fatal |Native memory|SIG|$))"
    r"|(?:->|=>|[;,]) (?:re)?trying (?:with )?(?:bs |batch(?: size)? )?\d+\b"
)
_ANNOUNCED = compile_later(
    r"(?i)(?:(?:previous|earlier|prior|last|old) (?:attempt|run|log|job|output|error|failure)\S*.{0,40}[:=>-]\s*$"
    r"|^(?:\+|\$|>|==>) ?.*\b(?:tail|cat|head|grep|less)\b.*\.(?:log|out|err)\b|^==> .* <==$)"
)
_WARNED = compile_later(
    r"(?<!NCCL )\bWARN(?:ING)?\b|\b\w*Warning: |\bINFO\b|\bDEBUG\b|(?:^|: )[IWE] (?:tensorflow|external|tsl)/"
    r"|^[IW]\d{4} |\[W\d{3}\b|\[W:"
)
"""A line that a library writes about what it can do without; TensorFlow says so of a missing driver as an error."""
_OF_SYSTEM = compile_later(r"\b(?:OS|IO)Error\b(?!.*\[Errno)")
"""An exception that says that the system refused something, and not what."""
_OF_DISKS = frozenset({FailureClass.STORAGE_FAULT, FailureClass.DISK_FULL})
_MEMORY = frozenset({FailureClass.GPU_OUT_OF_MEMORY, FailureClass.OUT_OF_MEMORY})
_OF_RANKS = compile_later(
    r"\b(?:[NRHMX]|one)CCL\b|\bnccl\w*|\bDist(?:Backend|Store|Network)Error\b|\bTCPStore\b|\bProcessGroup\w*|\bMPI_\w+"
    r"|\bCollective[A-Z]\w*"
    r"|(?i:\b(?:gloo|c10d|torchrun|torch[./]distributed|torch\.?elastic|rendezvous|rdzv|horovod\w*|deepspeed"
    r"|mpi(?:run|exec|ch)?|open ?mpi|orted?|prted?|pmix|ucx|srun|slurmstepd|world[_ ]?size|ranks|collectives?"
    r"|(?:local|global|node)[_ ]?rank|jax[./]distributed)\b|\brank ?[\[(:=]? ?\d)"
)
"""Words of ranks, and of what starts them or carries what they say to each other."""
_KERNEL = compile_later(r"\bNVRM: |\bOut of memory: Killed process|\boom-kill:|^\[ *\d+\.\d+\] ")
"""Lines of the kernel's log: scripts print it before the job, and it is days long."""
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
"""Between two tracebacks of one chain. Source: CPython, Lib/traceback.py."""
_FEEDER = compile_later(r'/multiprocessing/queues\.py", line \d+, in _feed\b')
"""A thread that hands on what is in a queue; it prints a traceback of its own. Source: CPython, multiprocessing."""
_NOT_THE_JOBS = compile_later(
    r"Error in (?:atexit|sys\.excepthook)|Exception (?:in thread|ignored)|Process \S+:$"
    r"|[\d ,:-]{19,24}- distributed\.\w+ - (?:ERROR|WARNING) - "
)
"""Before a traceback that does not end the program: at exit, of a thread, of a worker, of Dask's own connections."""


def is_of_one_process(facts: LogFacts) -> bool:
    """Whether nothing in the output speaks of ranks or peers, whose lines mix and follow from each other."""
    return not any(
        match.rank is not None or match.role is LineRole.CASCADE or match.kind is FailureClass.COMMUNICATION
        for match in facts.matches
    )


def speaks_of_ranks(facts: LogFacts) -> bool:
    """Whether a line names a rank, or a library or launcher of ranks; that a peer closed a connection anybody says."""
    if any(match.rank is not None for match in facts.matches):
        return True
    lines = (match.line for match in facts.matches)
    return any(map(_OF_RANKS.search, (facts.tail, facts.traceback, facts.exception, *lines)))


def went_on_after(facts: LogFacts, line: str) -> bool:
    """Whether more ordinary lines than an end writes follow the last place of `line`; False where that is not known."""
    if not is_of_one_process(facts) or not line:
        return False
    return count_after(facts, line) > MORE_THAN


def count_after(facts: LogFacts, line: str) -> int:
    """How many ordinary lines follow the last place of `line`."""
    _, found, after = facts.tail.rpartition(line)
    # A line that is no longer among the last ones has at least as many behind it.
    return _count_ordinary((after if found else facts.tail).split("\n"))


def is_quoted(facts: LogFacts, match: LogMatch) -> bool:
    """Whether a line tells of another time (an attempt before, the kernel's log of days) and the job went on after it.

    The line says so itself, or a line shortly before announces what an earlier attempt had printed.
    """
    before, found, _ = facts.tail.rpartition(match.line)
    announced = found and any(_ANNOUNCED.search(line) for line in before.split("\n")[-ANNOUNCED_WITHIN:])
    if not (_PAST.search(match.line) or _KERNEL.search(match.line) or announced):
        return False
    _, _, after = facts.tail.rpartition(match.line) if found else ("", "", facts.tail)
    ordinary = [line for line in after.split("\n") if not (_PAST.search(line) or _KERNEL.search(line))]
    return _count_ordinary(ordinary) > FEW_AFTER


def is_of_kernel(match: LogMatch) -> bool:
    """Whether a line is of the kernel's log, which a script may print at any time."""
    return _KERNEL.search(match.line) is not None


def is_warning(facts: LogFacts, match: LogMatch) -> bool:
    """Whether a line only warned, and the exception that the output ends with came later and of itself."""
    raised = [other.offset for other in facts.matches if other.pattern == EXCEPTION]
    if not raised or raised[-1] <= match.offset or match.offset in raised or _WARNED.search(match.line) is None:
        return False
    if _OF_SYSTEM.search(facts.exception) and match.kind in _OF_DISKS:
        return False  # what was tried again and again, and then given up
    return is_of_one_process(facts) and ends_in_exception(facts)


def was_answered(facts: LogFacts, match: LogMatch) -> bool:
    """Whether memory that ran out was answered (by a smaller batch): the training went on, to an exception of its own.

    Of a disk that is full the same shows nothing: what could not be written is missed later.
    """
    raised = [other.offset for other in facts.matches if other.pattern == EXCEPTION]
    if match.kind not in _MEMORY or not raised or raised[-1] <= match.offset or match.offset in raised:
        return False
    _, found, after = facts.tail.rpartition(match.line)
    steps = sum(1 for line in (after if found else facts.tail).split("\n") if PROGRESS.search(line))
    return steps > FEW_STEPS and is_of_one_process(facts) and ends_in_exception(facts)


def find_chain(facts: LogFacts) -> tuple[str, ...]:
    """What was raised in the last traceback and in those that it is chained to, the first of them first."""
    lines = facts.tail.split("\n")
    heads = [number for number, line in enumerate(lines) if HEADER in line]
    raised: list[str] = []
    for number, head in reversed(list(enumerate(heads))):
        raised.insert(0, read_traceback(lines[head:]).raised[:300])
        between = lines[heads[number - 1] : head] if number else []
        if not any(clean_line(line)[1].startswith(_CHAINED) for line in between):
            break
    return tuple(filter(None, raised))


def find_message(facts: LogFacts) -> tuple[str, ...]:
    """The further lines of the last exception's text, which are indented."""
    if not facts.exception:
        return ()
    after = facts.tail.rpartition(facts.exception)[2]
    indented = takewhile(lambda line: line[:1].isspace(), after.split("\n")[1:])
    return tuple(line.strip()[:300] for line in indented)


def find_last_words(facts: LogFacts, causes: Iterable[LogMatch]) -> LogMatch | None:
    """The exception that the output ends with, if the job had gone on after each of the causes."""
    raised = [match for match in facts.matches if match.pattern == EXCEPTION]
    ends = facts.tail.rstrip().endswith(facts.exception) and bool(facts.exception)
    if not raised or raised[-1].line != facts.exception[:300] or not ends:
        return None
    before, found, _ = facts.tail.rpartition(HEADER)
    if not found or not is_of_one_process(facts) or _NOT_THE_JOBS.match(_last_line(before)):
        return None
    handled = {match.offset for match in raised}
    for cause in causes:
        _, _, after = before.rpartition(cause.line)
        if cause.offset > raised[-1].offset or any(words in after for words in _CHAINED):
            return None
        if cause.offset in handled and sum(1 for line in after.split("\n") if PROGRESS.search(line)) > FEW_STEPS:
            # A traceback that was printed and followed by steps of the training was caught.
            continue
        if _count_ordinary(after.split("\n")) <= MORE_THAN:
            return None
    return next(match for match in facts.matches if match.offset == raised[-1].offset)


def ends_in_exception(facts: LogFacts, most_after: int = 0) -> bool:
    """Whether the output ends with a traceback that ended the program; its text's own lines are indented.

    What Python says of a finaliser, a thread or a worker, and what it says while it ends, is none. `most_after`: so
    many lines may follow, where what the job printed before comes through a pipe and its traceback does not.
    """
    before, found, after = facts.tail.rpartition(HEADER)
    if not facts.exception or not found or _NOT_THE_JOBS.match(_find_announcement(before)) or _FEEDER.search(after):
        return False
    _, raised, rest = after.rpartition(facts.exception)
    follow = [line for line in rest.split("\n") if line.strip() and not line[0].isspace()]
    return bool(raised) and len(follow) <= most_after


def _find_announcement(before: str) -> str:
    """The line before a traceback; of one that is chained to another, before the first of them."""
    line = _last_line(before)
    while line.startswith(_CHAINED) and HEADER in before:
        before = before.rpartition(HEADER)[0]
        line = _last_line(before)
    return line


def _last_line(text: str) -> str:
    return clean_line(text.rstrip("\n").rpartition("\n")[2])[1]


def _count_ordinary(lines: list[str]) -> int:
    """Lines that are neither empty nor part of a traceback (which is indented, between its header and its end)."""
    return sum(
        1
        for line in lines
        if line.strip()
        and not line[0].isspace()
        and HEADER not in line
        and not line.startswith(_CHAINED)
        and judge_exception(line) is None
    )
