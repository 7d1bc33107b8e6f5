"""From the words of a log to detections: the root before what followed from it, the rank that failed first. Pure.

The order of preference, each step only when those before say nothing:

1. what the last traceback says itself, when a rule knows its last line and it is neither a peer's failure nor passing;
2. the earliest rule that names a cause, unless the job went on after all of them and its own exception ends the output;
3. what the last traceback says, when a run could have survived it elsewhere (a name server, a missing file);
4. the earliest exception that is no peer's failure: the job's own code;
5. the earliest failure of a collective or a peer;
6. a loss that was not finite, several times over (before 4 when the exception itself is about NaN);
7. what a run can survive, when the output ends with it.

Only the last `NEAR_BYTES` of the output are judged so, and the last `FAR_BYTES` where the failure of a peer follows:
other ranks say a lot before all have ended. What was said before was survived: a batch size that was tried and was too
large, a cache that could not be written. When nothing speaks there, the same is done with all of it, and is POSSIBLE
only. Nothing at all: UNKNOWN, with the words that were found. Words alone are never more than LIKELY.
"""

from __future__ import annotations

from signal import Signals

from holdfast.diagnosis.evidence import Answer, Detection, LineRole, LogFacts, LogMatch, Reading
from holdfast.model.pattern import compile_later
from holdfast.model.record import replace
from holdfast.model.verdict import Clue, Confidence, FailureClass

from .endings import ENDING, PROGRESS, WORDS, find_complaint, judge_ending, judge_last_words
from .exceptions import (
    EXCEPTION,
    HEADER,
    find_bare_exception,
    is_damaged,
    is_named,
    is_of_client,
    is_open_end,
    judge_exception,
)
from .lines import clean_line
from .patterns import PATTERNS
from .survived import (
    MORE_THAN,
    count_after,
    find_chain,
    find_last_words,
    find_message,
    is_of_kernel,
    is_of_one_process,
    is_quoted,
    is_warning,
    was_answered,
)
from .words.languages import LANGUAGES
from .words.storage import CUT_FILE, DAMAGED

_PASSING = frozenset(pattern.id for pattern in PATTERNS if pattern.passing)
_GOTCHAS = {pattern.id: pattern.gotchas for pattern in PATTERNS}
_LANGUAGES = frozenset(pattern.id for pattern in LANGUAGES)
_UNSURE = frozenset(pattern.id for pattern in PATTERNS if pattern.unsure)
_WIDE = frozenset(pattern.id for pattern in PATTERNS if pattern.lines > 1)
_NEUTRAL = ("card.library", "net.retry_after")
"""Rules that name no cause and no other's end: the exception that they know a line of is the job's own."""
_PEERS = frozenset({FailureClass.COMMUNICATION})
"""Classes that mostly follow from another rank's end."""
_UPLOAD = compile_later(r"(?i)upload|\b(?:could|can) ?not be (?:transferred|copied|pushed)\b|\bfailed to push\b")
_TRIED_AGAIN = compile_later(r"(?i)\b(?:is|will be|being) (?:retried|resubmitted|restarted|ignored)\b|\bretrying\b")
_THROWN = "what():"
"""Before the text of a C++ exception that ends a program. Source: libstdc++, vterminate.cc."""
_OF_LOADER = compile_later(r"^RuntimeError: DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly")
LOADER_REMEDY = (
    "see the worker's own error above its last line, where there is one; else it was mostly killed for want of "
    "memory, or of room in /dev/shm: use fewer workers, and num_workers=0 shows an error of their own"
)
_SENDERS = frozenset({FailureClass.PREEMPTED, FailureClass.TIMED_OUT, FailureClass.OUT_OF_MEMORY})
_REPEATED = 3
"""Mixed precision skips a step whose loss is not finite now and then; a run that diverged says it again and again."""
_BY_EXIT = {
    -9: (FailureClass.KILLED, "was killed (signal 9), and its output does not say by whom"),
    -15: (FailureClass.KILLED, "was asked to end (signal 15), and its output does not say by whom"),
    -1: (FailureClass.HANG_UP, "was ended by a hang-up (signal 1)"),
    -11: (FailureClass.NATIVE_CRASH, "crashed in native code (signal 11)"),
    -6: (FailureClass.NATIVE_CRASH, "aborted (signal 6)"),
    -4: (FailureClass.NATIVE_CRASH, "met an illegal instruction (signal 4)"),
    -8: (FailureClass.NATIVE_CRASH, "divided by zero in native code (signal 8)"),
    -7: (FailureClass.SHARED_MEMORY, "met a bus error (signal 7)"),
}
"""Exit codes as torchrun and multiprocessing report them: minus the signal."""
_CODES = ("exitcode", "worker", "worker_exit", "spawned", "task", "mpi", "abort", "recipe", "status_code")
_NAMES = ("ended_by", "named", "status", "negative", "by", "go")
_SPOKEN = {
    "killed": "SIGKILL",
    "terminated": "SIGTERM",
    "segmentation fault": "SIGSEGV",
    "aborted": "SIGABRT",
    "bus error": "SIGBUS",
}
"""Signals as strsignal(3) and a shell say them."""
SHELL_BASE, TERM = 128, 15
SOURCE = "output.log"
LIMIT_WAIT_S = 120
"""Limits of requests are counted by the minute, by some in five. Source: huggingface_hub, OpenAI: rate limits."""
WIDE_BYTES = 800
FEW_LINES = 5
FEW_FURTHER, LONGEST_FURTHER = 3, 200
"""Of the further lines of an exception whose first one says little."""
_PLACE = compile_later(r'in "[^"\n]+", line \d+, column \d+')
"""Where a file is wrong, below what is wrong with it. Source: PyYAML, yaml/error.py."""
_NAMES_HOST = compile_later(r"host=|https?://|\b[\w-]+(?:\.[\w-]+)+:\d|\bhost \S+\.\S+")
_HERE = compile_later(
    r"(?://|ipv4:|host='|\(')(?:localhost|(?:127|10)\.\d+\.\d+\.\d+|192\.168\.\d+\.\d+|172\.(?:1[6-9]|2\d"
    r"|3[01])\.\d+\.\d+"
    r"|\[::1\]|0\.0\.0\.0)[:/'%]"
)
"""Addresses of this box and of its own network. Source: RFC 6890; RFC 1918."""
_NAMES_OTHER = compile_later(
    r"\b(?:https?|s3|gs|ftp)://(?!(?:127|10)\.\d+\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.|0\.0\.0\.0"
    r"|169\.254\.|[\w.-]+\.(?:local|localdomain|internal|lan|svc)\b|(?:[\w-]+\.)*wandb\.ai|docs\.|pytorch\.org/docs"
    r"|github\.com/[\w.-]+/[\w.-]+/issues)"
    r"[\w-]+(?:\.[\w-]+)+"
)
"""An address of another network than this box's own, and none that warnings and trackers print."""
_NO_ROUTE = compile_later(r"\bNetwork is unreachable\b|\[Errno 101\]")
"""A box that has no way to other networks, as computing nodes often have not. Source: errno(3) ENETUNREACH."""
NEAR_BYTES = 64 * 1024
FAR_BYTES = 4 * 1024**2


def judge_log(reading: Reading[LogFacts]) -> tuple[Detection, ...]:
    """What a log speaks for, best first; always at least one detection."""
    facts = reading.value
    if not reading.known or facts is None:
        return (_answer(Answer.UNKNOWN, unknown=(Clue(reading.unread or "the log was not read", SOURCE),)),)
    limits = ((not facts.whole, "not all of the output was kept or looked at"), (facts.binary, "its end is no text"))
    unknown = tuple(Clue(text, facts.path) for applies, text in limits if applies)
    root = find_root(facts)
    found = []
    if root is not None:
        unsure = root.pattern in _UNSURE or not _is_near(root, facts) or _may_be_here(root, facts)
        sure = Confidence.POSSIBLE if unsure else Confidence.LIKELY
        found.append(_name_sync(root, facts, _detect(root, facts, sure, unknown)))
    elif (report := _judge_report(facts, unknown) or _judge_peer(facts, unknown)) is not None:
        found.append(report)
    kinds = {detection.kind for detection in found}
    for match in _others(facts):
        if is_quoted(facts, match):
            continue
        if match.kind is not None and match.kind not in kinds:
            kinds.add(match.kind)
            found.append(_detect(match, facts, Confidence.POSSIBLE, unknown))
    if not found and (lost := _judge_lost(facts, unknown)) is not None:
        found.append(lost)
    if found:
        return tuple(found)
    words = tuple(_clue(match, facts) for match in facts.matches[:4])
    return (_answer(Answer.UNKNOWN if unknown else Answer.NO, words, unknown),)


def _may_be_here(root: LogMatch, facts: LogFacts) -> bool:
    """Whether words alone are a weak sign: a connection that failed may have been to a service of this box or network.

    Also where only words of an exception's text speak of a connection.
    """
    if root.pattern == WORDS or (root.pattern == ENDING and root.kind is FailureClass.TRANSIENT):
        return True
    if root.kind is not FailureClass.TRANSIENT:
        return False
    if _NO_ROUTE.search(facts.tail):
        return True
    said = _find_request(root, facts) if root.pattern == EXCEPTION else ""
    if is_of_client(root.line, said):
        # Who refuses is there, and its service is not.
        elsewhere = _NAMES_OTHER.search(said) is not None and not any(map(_HERE.search, (said, facts.tail)))
        return "refused" in root.line or not elsewhere
    if root.pattern == EXCEPTION and not is_named(root.line):
        return True
    if "refused" in root.line and _HERE.search(root.line):
        return True
    return _NAMES_HOST.search(root.line) is None and _HERE.search(facts.tail) is not None


def _find_request(root: LogMatch, facts: LogFacts) -> str:
    """What is said of a request that an exception ended: its traceback, and the last one where that follows from it.

    An address that stands elsewhere in the output (a warning's, of a download before) says nothing of it.
    """
    last = "\n".join((facts.traceback, *facts.message))
    if root.line == facts.exception[:300]:
        return last
    _, head, own = facts.tail.rpartition(root.line)[0].rpartition(HEADER)
    return "\n".join((own if head else "", last if root.line in find_chain(facts) else ""))


def _name_sync(root: LogMatch, facts: LogFacts, found: Detection) -> Detection:
    """A transfer that failed once the training had said that it was done is no failed training (FAIL-10)."""
    done = [match for match in facts.matches if match.pattern == "finished" and match.offset < root.offset]
    sent = root.pattern.startswith(("net.", "tracker")) or root.kind is FailureClass.TRANSIENT
    sent = sent or _UPLOAD.search(root.line) is not None
    if not done or not (sent or (root.pattern == EXCEPTION and root.kind in _PEERS)):
        return found
    _, _, after = facts.tail.rpartition(done[-1].line)
    if PROGRESS.search(after.partition(root.line)[0]):
        return found
    kind, clue = FailureClass.SYNC_FAILED, _clue(done[-1], facts)
    told = {key: value for key, value in found.facts.items() if key not in ("remedy", "wait_s")}
    return replace(found, kind=kind, evidence_for=(*found.evidence_for[:1], clue), facts=told)


def find_root(facts: LogFacts) -> LogMatch | None:
    """The line that says why, or None; see the module for the order."""
    roots = [match for match in facts.matches if match.role is LineRole.ROOT]
    near = [match for match in roots if _is_near(match, facts)]
    return _choose(facts, near) or _choose(facts, roots)


def _is_near(match: LogMatch, facts: LogFacts) -> bool:
    behind = facts.size_bytes - match.offset
    if behind <= NEAR_BYTES:
        return True
    return behind <= FAR_BYTES and any(
        other.offset > match.offset and (other.kind in _PEERS or other.role is LineRole.CASCADE)
        for other in facts.matches
    )


def _choose(facts: LogFacts, roots: list[LogMatch]) -> LogMatch | None:
    named = [match for match in _first_of_each_line(roots) if match.pattern != EXCEPTION]
    causes = [match for match in named if match.pattern not in _PASSING and match.kind not in _PEERS]
    causes = [
        match
        for match in causes
        if not (
            is_quoted(facts, match)
            or is_warning(facts, match)
            or was_answered(facts, match)
            or _is_abort_behind(roots, match)
        )
    ]
    last, chain = _last_words(facts) or _find_thrown(facts, named), find_chain(facts)
    if last is not None and (lost := _find_lost_card(causes, last)) is not None:
        return lost
    said = [match for match in causes if not is_of_kernel(match)]
    if last is None and said and (lost := _find_lost_card(said, said[0])) is not None:
        return lost
    if last is not None and last in causes:
        return _find_sender(causes, last) or last
    if causes:
        chained = next((match for match in causes if match.line in chain), None)
        return chained or find_last_words(facts, causes) or causes[0]
    if last is not None and last in roots and last.pattern in _PASSING:
        return last
    lossy = _repeated(named)
    if lossy is not None and "nan" in facts.exception.lower():
        return lossy
    told = (*chain, *find_message(facts))
    chained = next((match for match in reversed(named) if match.line in told and match.pattern in _PASSING), None)
    worker = _lost_worker(facts)
    peers = (match for match in roots if match.kind in _PEERS and not (worker and match.pattern == EXCEPTION))
    peer = next(peers, None)
    own = chained or _own_exception(facts, roots, chain)
    return own or peer or lossy or _final_line(facts, named)


def _first_of_each_line(matches: list[LogMatch]) -> list[LogMatch]:
    """Of one line what the first rule says of it: the special stands before the general."""
    first: dict[int, LogMatch] = {}
    for match in matches:
        first.setdefault(match.offset, match)
    return list(first.values())


def _find_lost_card(causes: list[LogMatch], last: LogMatch) -> LogMatch | None:
    """What says that a card failed, behind the last exception or first cause: that is what either came from."""
    return next((match for match in causes if match.kind is FailureClass.HARDWARE and match.offset > last.offset), None)


def _is_abort_behind(roots: list[LogMatch], match: LogMatch) -> bool:
    """Whether a process aborted itself because a peer or the network had failed, which its library said before."""
    aborted = match.kind is FailureClass.NATIVE_CRASH and "Abort" in match.line
    return aborted and any(other.kind in _PEERS and other.offset < match.offset for other in roots)


def _find_sender(causes: list[LogMatch], last: LogMatch) -> LogMatch | None:
    """Who sent the signal that the last exception tells of, where the words of a scheduler stand before it."""
    if last.kind is not FailureClass.KILLED:
        return None
    return next((match for match in causes if match.kind in _SENDERS and match.offset < last.offset), None)


def _last_words(facts: LogFacts) -> LogMatch | None:
    """What the rules say of the line that the last traceback ends with: the first rule that knows it."""
    raised = [
        match.offset for match in facts.matches if match.pattern == EXCEPTION and match.line == facts.exception[:300]
    ]
    if not raised:
        return None
    # A rule of several lines stands where its first line is.
    reports = (match for match in facts.matches if match.pattern in _WIDE and match.role is LineRole.ROOT)
    wide = next((match for match in reports if 0 <= raised[-1] - match.offset < WIDE_BYTES), None)
    return wide or next(match for match in facts.matches if match.offset == raised[-1])


def _find_thrown(facts: LogFacts, named: list[LogMatch]) -> LogMatch | None:
    """What a C++ exception said that nobody caught, where a run could survive it elsewhere; of one process."""
    thrown = (match for match in reversed(named) if match.line.startswith(_THROWN) and match.pattern in _PASSING)
    return next(thrown, None) if is_of_one_process(facts) else None


def _own_exception(facts: LogFacts, roots: list[LogMatch], chain: tuple[str, ...]) -> LogMatch | None:
    """The earliest exception that no rule calls a peer's failure, the reported rank's before others.

    Of one process it is in the chain of the last one: what was raised before that was handled.
    """
    strange = {
        match.offset
        for match in facts.matches
        if match.pattern not in (EXCEPTION, *_NEUTRAL)
        and (match.role is not LineRole.ROOT or match.kind in _PEERS or match.pattern in _PASSING)
    }
    own = [match for match in roots if match.pattern == EXCEPTION and match.offset not in strange]
    own = [match for match in own if match.kind not in _PEERS]
    peers = [match.offset for match in roots if match.kind in _PEERS]
    if own and peers and min(peers) < own[0].offset:
        return None
    if is_of_one_process(facts):
        chained = [match for match in own if match.line in chain]
        return next(
            (match for match in chained if match.kind is not FailureClass.BUG), next(iter(chained or own), None)
        )
    rank = _reported_rank(facts)
    return next((match for match in own if match.rank == rank and rank is not None), own[0] if own else None)


def _final_line(facts: LogFacts, named: list[LogMatch]) -> LogMatch | None:
    """What can be survived, in the very last line; another language's own report; an exception without traceback."""
    lines = facts.tail.rstrip().split("\n")
    line = clean_line(lines[-1])[1].strip()[:300]
    said = [match for match in named if match.line == line and match.kind is not FailureClass.DIVERGED]
    found = next((match for match in said if match.offset == said[-1].offset), None)
    if found is not None and found.kind is FailureClass.TRANSIENT:
        # A tool's last line is general ("unexplained error"); one shortly before may say what does not pass.
        near = {clean_line(text)[1].strip()[:300] for text in lines[-FEW_LINES:]}
        lasting = (match for match in named if match.line in near and match.kind is FailureClass.ENVIRONMENT)
        found = next(lasting, found)
    reports = (match for match in named if match.pattern in _LANGUAGES and count_after(facts, match.line) <= MORE_THAN)
    found = next(reports, None) or found
    bare = find_bare_exception(lines[-1:])
    judged = judge_exception(bare)
    offset = max(0, facts.size_bytes - len(lines[-1].encode()))
    if found is None and judged is not None and not any(match.line == line for match in facts.matches):
        return LogMatch(EXCEPTION, LineRole.ROOT, judged[1], bare[:300], offset, values={"exception": judged[0]})
    return found if found is not None and found.pattern not in _LANGUAGES else _read_ending(facts, found, offset)


def _read_ending(facts: LogFacts, found: LogMatch | None, offset: int) -> LogMatch | None:
    """What the last lines report, where its text says more than that the program failed."""
    if judge_exception(facts.exception):
        return found
    ending = judge_ending(facts.tail)
    if ending is not None and ending[0] is not FailureClass.BUG:
        return LogMatch(ENDING, LineRole.ROOT, ending[0], ending[1].strip()[:300], offset)
    if found is not None:
        return found
    # What a launcher says of how a part ended is more than a text that says nothing of its own; a signal more than any.
    codes = [code for match in facts.matches if (code := find_code(match))]
    said = None if any(code < 0 for code in codes) else judge_last_words(facts.tail)
    if said is None and not codes:
        hints = any(match.kind is not None and match.role is not LineRole.CASCADE for match in facts.matches)
        said = ending or (None if hints else find_complaint(facts.tail))
    return None if said is None else LogMatch(WORDS, LineRole.ROOT, said[0], said[1].strip()[:300], offset)


def _repeated(named: list[LogMatch]) -> LogMatch | None:
    lossy = [match for match in named if match.kind is FailureClass.DIVERGED]
    return lossy[0] if len(lossy) >= _REPEATED else None


def _others(facts: LogFacts) -> list[LogMatch]:
    """What else was said: causes, then what supports one; what only follows is left out."""
    known = [match for match in _first_of_each_line(list(facts.matches)) if match.role is not LineRole.CASCADE]
    return sorted(known, key=lambda match: (match.role is not LineRole.ROOT, match.offset))


def _judge_report(facts: LogFacts, unknown: tuple[Clue, ...]) -> Detection | None:
    """What a launcher says of the part that failed first, when nothing names a cause: how it ended."""
    told = [match for match in facts.matches if not _TRIED_AGAIN.search(match.line)]
    reports = [(match, code) for match in told if (code := find_code(match)) not in (None, 0, -TERM)]
    # A signal says more than a code, which may be the launcher's own; the report of the first rank more than others.
    reports.sort(key=lambda item: ((item[1] or 0) > 0, item[0].pattern != "elastic.root"))
    for match, code in reports:
        if code < 0 and code not in _BY_EXIT:
            continue
        kind, text = _BY_EXIT.get(code, (FailureClass.BUG, f"ended with exit code {code}, and nothing says why"))
        who = "a process" if match.rank is None else f"rank {match.rank}"
        clues = (Clue(f"{who} {text}", facts.path), _clue(match, facts))
        # Who waited for a process knows its signal.
        sure = Confidence.LIKELY if kind is FailureClass.NATIVE_CRASH else Confidence.POSSIBLE
        return Detection("log.report", kind, Answer.YES, sure, clues, unknown=unknown, facts=_facts(match, facts))
    return None


def _lost_worker(facts: LogFacts) -> bool:
    """Whether a worker of its own was killed: that is no peer, though its pipe breaks in the same way."""
    return any(match.pattern == "worker.killed" for match in facts.matches)


def _judge_peer(facts: LogFacts, unknown: tuple[Clue, ...]) -> Detection | None:
    """What ended it was a peer that was gone, and this output does not say why that went."""
    gone = [match for match in facts.matches if match.role is LineRole.CASCADE and match.kind in _PEERS]
    ended = next((match for match in gone if facts.exception and match.line == facts.exception[:300]), None)
    return None if ended is None or _lost_worker(facts) else _detect(ended, facts, Confidence.LIKELY, unknown)


def _judge_lost(facts: LogFacts, unknown: tuple[Clue, ...]) -> Detection | None:
    """What ended it was that a process of its own was gone, and nothing says why: something killed that."""
    judged = judge_exception(facts.exception)
    told = {}
    if _OF_LOADER.search(facts.exception):
        judged, told = (facts.exception, FailureClass.KILLED), {"remedy": LOADER_REMEDY}
    if judged is None or judged[1] is not FailureClass.KILLED:
        return None
    clue = Clue(f"a process of its own was gone, and nothing says why: {facts.exception[:300]}", facts.path)
    return Detection("log.lost", judged[1], Answer.YES, Confidence.POSSIBLE, (clue,), unknown=unknown, facts=told)


def find_code(match: LogMatch) -> int | None:
    """The exit code that a launcher's line gives, minus the signal of one that a signal ended; None without."""
    values = match.values
    named = next((values[name] for name in _NAMES if name in values), "")
    if named:
        name = _SPOKEN.get(named.lower(), f"SIG{named.removeprefix('SIG')}")
        return -int(Signals[name]) if name in Signals.__members__ else None
    signalled = values.get("signalled", values.get("by_number", ""))
    text = f"-{signalled}" if signalled else next((values[name] for name in _CODES if name in values), "")
    code = int(text) if text.removeprefix("-").isdecimal() and len(text) < 6 else None
    return SHELL_BASE - code if code is not None and SHELL_BASE < code <= SHELL_BASE + 31 else code


def _reported_rank(facts: LogFacts) -> int | None:
    """The rank that torchrun names as the first to fail."""
    return next((match.rank for match in facts.matches if match.pattern == "elastic.root"), None)


def _detect(match: LogMatch, facts: LogFacts, confidence: Confidence, unknown: tuple[Clue, ...]) -> Detection:
    assert match.kind is not None
    support = tuple(
        _clue(other, facts)
        for other in facts.matches
        if other is not match and other.role is not LineRole.CASCADE and other.kind is match.kind
    )
    return Detection(
        f"log.{match.pattern}",
        match.kind,
        Answer.YES,
        confidence,
        (_clue(match, facts), *support[:3]),
        unknown=unknown,
        gotchas=_GOTCHAS.get(match.pattern, ()),
        facts=_facts(match, facts),
    )


def _facts(match: LogMatch, facts: LogFacts) -> dict[str, str]:
    rank = match.rank if match.rank is not None else _reported_rank(facts)
    found = {**match.values, "line": match.line}
    if match.pattern == "net.rate_limit":
        found["wait_s"] = _find_wait(facts)
    if remedy := _find_remedy(match, facts):
        found["remedy"] = _fill(remedy, match.values)
    if rank is not None:
        found["rank"] = str(rank)
    return found


def _find_remedy(match: LogMatch, facts: LogFacts) -> str:
    """The rule's own remedy; of data that are damaged that of a file, where no line speaks of the disk."""
    said = (match.line, *(facts.message if match.line == facts.exception[:300] else ()))
    judged = match.kind is FailureClass.STORAGE_FAULT and match.pattern in (EXCEPTION, ENDING, WORDS)
    remedy = DAMAGED if not match.remedy and judged and any(map(is_damaged, said)) else match.remedy
    return "" if remedy == DAMAGED and any(map(_is_of_device, facts.matches)) else remedy


def _is_of_device(match: LogMatch) -> bool:
    """Whether a rule knows a line as what the system says of a disk or a mount that failed."""
    is_ours = match.pattern.startswith("storage.") and match.pattern != CUT_FILE
    return is_ours and match.kind is FailureClass.STORAGE_FAULT


def _fill(remedy: str, values: dict[str, str]) -> str:
    """A remedy with what its rule found: a name in braces stands for the group of that name, all else for itself."""
    for name, value in values.items():
        remedy = remedy.replace(f"{{{name}}}", value)
    return remedy


def _find_wait(facts: LogFacts) -> str:
    """The seconds that a server asks for behind a 429; else so many that its window is over."""
    told = [match.values.get("retry_after") or match.values.get("again_in") for match in facts.matches]
    return str(max((int(text) for text in told if text), default=0) or LIMIT_WAIT_S)


def _clue(match: LogMatch, facts: LogFacts) -> Clue:
    who = "" if match.rank is None else f"rank {match.rank}: "
    more = ""
    placed = facts.message and _PLACE.match(facts.message[0]) is not None
    if match.line == facts.exception[:300] and (placed or is_open_end(facts.exception)):
        telling = [line[:LONGEST_FURTHER] for line in facts.message if any(map(str.isalnum, line))]
        more = " ".join(("", *telling[:FEW_FURTHER]))
    return Clue(f"{who}{match.line}{more}", f"{facts.path}, byte {match.offset}")


def _answer(answer: Answer, words: tuple[Clue, ...] = (), unknown: tuple[Clue, ...] = ()) -> Detection:
    return Detection("log", FailureClass.UNKNOWN, answer, evidence_for=words, unknown=unknown)
