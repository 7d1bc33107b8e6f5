"""What speaks against an exit code 0: how the output ends, and what the job left behind. Pure.

An alarm that is wrong costs more than one that is missed: a traceback that was handled is followed by more output, one
loss that is not finite is passed over, a helper that ran beside the job all the time is no part of its work.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.logs.attribute import find_code
from holdfast.diagnosis.logs.endings import PROGRESS
from holdfast.diagnosis.logs.exceptions import HEADER
from holdfast.diagnosis.logs.survived import ends_in_exception
from holdfast.model.pattern import compile_later

if TYPE_CHECKING:
    from holdfast.diagnosis.evidence import LogFacts

_MODULE = compile_later(r'Traceback \(most recent call last\):\n  File "[^"\n]+", line \d+, in <module>\n')
_TOLD = compile_later(r"(?i)\b(?:error|warn\w*|exception|critical|fail\w*|skip\w*|ignored|ignoring|caught)\b|:\s*$")
"""Before a traceback that a program printed itself."""
LOSSES = 3
"""So many of the last losses must all be not finite; of fewer all, and at least two."""
LAST_LINES = 5
LATE_LINES = 3
LONGEST_LAST = 1000
"""Characters of a last line that are looked at."""
_VALUE = r"\s*['\"]?(?:tensor\()?(?P<value>[-+]?(?:nan\b|inf(?:inity)?\b|\d[\d.]*(?:e[-+]?\d+)?))"
_OF_WHAT = r"(?: ?\([\w .]{1,20}\))?"
"""Behind a name: what kind of a loss, as in ``loss (avg)``."""
_LOSS = compile_later(
    rf"(?i)(?<!\bno )\b(?:train[_ /]?|val[_ /]?|total[_ /]?)?loss\b{_OF_WHAT}['\"]?\s*(?:\bis\b|[:=|])?{_VALUE}"
)
_NAMED = compile_later(rf"(?i)(?<![\w/.-])(?P<name>[\w/.-]+){_OF_WHAT}['\"]?\s*[:=|]{_VALUE}")
_ABOUT_AN_ERROR = compile_later(
    r"(?m)^.{0,200}Traceback \(most recent call last\):\n(?:[ \t].*\n)*.*$|^.{0,300}\b\w+(?:Error|Exception)\(['\"].*$"
)
_PART = compile_later(r"[_/.-]|\d+")
_LOSS_PARTS = frozenset({"loss", "nll"})
_NO_LOSS_PARTS = frozenset(
    {"best", "min", "max", "lowest", "prev", "last", "scale", "scaler", "scaling", "weight", "coef", "coeff", "fn"}
)
"""Of a name: what sets a loss, or remembers one and begins as infinite."""
FEWEST_NOTHINGS = FEWEST_LAST = 2
FEWEST_COUNTED = 3
_COUNTED = compile_later(r"(?i)\b(?:global[_ ])?step[\s:=\[]*(?P<step>\d{1,9}) ?/ ?(?P<planned>\d{1,9})\b")
_ON_PURPOSE = compile_later(
    r"(?i)\bearly[ _-]?stop|\bpatience\b|\bconverged\b|\btime (?:limit|budget|is up)|\bprun(?:ed|ing)\b|\bresum"
    r"|\bmax(?:imum)?[_ ](?:time|duration|hours)|\bsmoke\b|\bdry[_ -]?run|\bpreempt|\bsignal\b"
    r"|\bcheckpoint(?:ed)? and (?:exit|stop|leav)|\btarget (?:loss|metric|reward)"
)
_TEE = compile_later(r"(?m)^\+.* \| *tee\b")
"""As `set -x` shows a command whose output goes through tee."""
_ON_CPU = compile_later(r"(?i)\bdevice\b\s*(?:is|[:=])?\s*['\"]?cpu\b")
_OTHER_DEVICE = compile_later(r"\bNo visible GPU is found, setting device to CPU\b|\bXGBoost is not compiled with CUDA")
"""Only what answers a wish of the job: others say so of a card that nobody asked them to use. Source: XGBoost."""
_NOTHING = compile_later(
    r"(?i)\b(?:found|loaded|matched|read|got|has|have|with|after|of|total:?) (?:only )?0 "
    r"(?:images?|samples?|examples?|files?|shards?|batch(?:es)?|records?|rows?|tokens?|sequences?|documents?|steps?|items?|classes)\b"
    r"|\b0%\|[^|\n]{0,60}\| 0/[1-9]\d* \[00:00<\?|'train_runtime': '?0\.0\d*\b"
    r"|\b(?:data ?set|data ?loader|training set|train split) is empty\b|\bnothing to (?:do|train|save|process)\b"
)
_NOTHING_WRONG = compile_later(
    r"(?i)\b(?:corrupt\w*|bad|broken|invalid|missing|failed|skip(?:s|ped|ping)|dropp\w+|duplicates?|val\w*|test|cache)\b"
)
_FIRST_STEPS = compile_later(r"(?i)\b(?:step|iter(?:ation)?|batch)\b[\s:=\[]*[1-9]")
_UNSAVED = compile_later(
    r"(?i)\bno (?:weights|checkpoints?|models?|results?|outputs?) (?:was|were|has been|have been) (?:written|saved)\b"
    r"|\b(?:could not|cannot|failed to|unable to) (?:save|write|finali[sz]e|upload|export) (?:the )?"
    r"(?:final |last |best |trained )*(?:model|weights|checkpoint|results?|step \d+)\b"
    r"|(?<!Attempt )\bFailed to (?:copy|sync|push|upload)\b"
)
_SIGNAL = r"(?:SIG(?:TERM|INT|HUP)|signal:?\s*(?:15|2|1)\b|TERM\b)"
_FAREWELL = compile_later(
    rf"(?i)\b(?:received|got|caught|handling|interrupted by)\s+(?:an?\s+|the\s+)?(?:signal:?\s+)?{_SIGNAL}"
    rf"|\b{_SIGNAL}\)?\s+(?:was\s+)?(?:received|caught)|^\s*(?:\S+:.*\s)?Terminated\s*$"
)
"""A job that says that it was asked to leave; bash says ``Terminated`` of a child that TERM ended."""
_HOW = (
    r"(?:Killed|Segmentation fault|Aborted|Bus error|Illegal instruction|Floating point exception"
    r"|Trace/breakpoint trap|Bad system call)"
)
_SHELL_SAID = compile_later(
    rf"^{_HOW}(?: \(core dumped\))?$"
    rf"|^(?:\S.*: line \d+|\S+): +(?P<pid>\d+) {_HOW}(?: {{2,}}| *\(core dumped\)|(?<=exception))(?P<command>.+)$"
)
"""A shell of a child that a signal ended: dash the words alone, bash in a column of 24, before the command.

Of what ended before a pipe bash says nothing without ``pipefail``.
"""
_FATAL = "Fatal Python error: "
_OF_FATAL = compile_later(r"^(?:Current thread|Thread|Extension modules:|Python runtime state:|  \S)")
"""What CPython's faulthandler writes behind its first line."""
_SERVER = compile_later(r"(?i)(?<![a-z])(?:servers?|serve|redis|uvicorn|gunicorn|ray start)(?![a-z])")
_HELPER = compile_later(
    r"(?i)(?<![\w-])(?:tensorboard|wandb|mlflow|jupyter|monitor|exporter|sidecar|helper|child|subprocess"
    r"|(?:data ?)?loader|worker)s?(?![\w-])"
)
"""What a job starts beside itself, and ends when it is done; no part of the name of a box (``gpu-worker-01``)."""

_GAVE_UP = compile_later(
    r"""
    (?:(?P<who>|.{0,120}?(?:[\[|:)\]>-][ ]{0,4}|[:.,]\d{2,9}Z?[ ]+))(?:ERROR|FATAL|CRITICAL)\b[\]|): -]
        |(?:error|Error|[Ff]atal(?:[ ]error)?|[Cc]ritical):)
    # Not what counts errors, or measures one.
    (?!\W*(?:0(?=[ ]?[,;|-]|[ ](?i:errors?|fail|warn))|(?:\d+%|\d*\.\d+%?|\d*\.?\d+e[-+]?\d+)(?![\w.])))
    (?P<said>.*?)
    (?:(?<=[,;:.!?()\]|-])\s*|(?<=ERROR[ ])|(?<=FATAL[ ])|(?<=CRITICAL[ ])|\b(?:and|so)\s+)
    (?i:exiting|aborting|giving[ ]up|quitting)\b
    (?=\W*$|[.!:,;(]|[ ]-
        |\s+(?:(?:(?:the|this)[ ])?(?:training|run|job|program|process|script|experiment)|now|here|immediately|after
            |because|due|since|with|without)\b)
    """,
    re.VERBOSE,
)
"""A line of an error that says that the program ends because of it, behind what a logger puts first."""
_NOT_THE_WORK = compile_later(
    r"(?i)\b(?:upload|sync|push|telemetry|notif|metric|logg|clean|teardown|shut|heartbeat|watchdog|profil|trac|thread|retry"
    r"|skip|fall(?:ing|s)? ?back|instead|continue|continuing|ignore|ignoring|restart|requeu|resubmit|already|another"
    r"|up to date|no more|test"
    r"|(?<!not )(?<!be )(?:done|finished|completed?)\b(?! with)"
    r"|(?:max\w{0,4}_)?(?:steps?|epochs?|iterations?|accuracy|target|goal|tolerance|criteri\w+)"
    r" (?:(?:is|was|were) )?(?:reached|met)\b)"
)
"""What only serves the work, what comes once more, and a level of errors for the end that was planned."""
_FROM_A_TRACKER = "wandb:"
"""Before what a tracker prints when the program is over."""
FIRST_WORDS = 3


def find_nothing_done(facts: LogFacts) -> str:
    """The last line that says that there was nothing to work on, where two lines do; else empty.

    One is not enough: a filter that drops nothing, an empty split of the data.
    """
    lines = [line.strip() for line in facts.tail.splitlines()]
    said = [line for line in lines if _NOTHING.search(line) and not _NOTHING_WRONG.search(line)]
    return said[-1][:300] if len(said) >= FEWEST_NOTHINGS and not any(map(_FIRST_STEPS.search, lines)) else ""


def find_failed_part(facts: LogFacts) -> str:
    """The line by which a launcher says, last of all, that a part of it ended with another code; empty without.

    Whoever ends what is left over sends a signal: that is no such code.
    """
    last = [line.strip()[:300] for line in facts.tail.splitlines() if line.strip()][-FEWEST_LAST:]
    ended = (match for match in facts.matches if match.line in last and (find_code(match) or 0) > 0)
    return next((match.line for match in ended if not _HELPER.search(match.line)), "")


def find_other_device(facts: LogFacts) -> str:
    """The line by which a library says that it took the processor where a card was asked for; empty without."""
    lines = [line.strip()[:300] for line in facts.tail.splitlines()]
    fell_back = any(match.pattern == "card.cpu_fallback" for match in facts.matches)
    return next((line for line in lines if _OTHER_DEVICE.search(line) or (fell_back and _ON_CPU.search(line))), "")


def find_early_end(facts: LogFacts) -> str:
    """The last line that counts steps, where that is under half of what it counts to; empty where it may be right.

    Not where the training says that it ended early on purpose.
    """
    counted = [match for line in facts.tail.splitlines() if (match := _COUNTED.search(line))]
    if len(counted) < FEWEST_COUNTED or _ON_PURPOSE.search(facts.tail):
        return ""
    planned = {match["planned"] for match in counted}
    reached = int(counted[-1]["step"])
    if len(planned) > 1 or reached != max(int(match["step"]) for match in counted):
        return ""
    return counted[-1].string.strip()[:300] if reached < int(planned.pop()) / 2 else ""


def find_unsaved(facts: LogFacts) -> str:
    """The line near the end that says that what the work is for was not written; empty without."""
    lines = [line.strip() for line in facts.tail.splitlines() if line.strip()]
    return next((line[:300] for line in reversed(lines[-LAST_LINES:]) if _UNSAVED.search(line)), "")


def find_given_up(facts: LogFacts) -> str:
    """The last line, where it is of an error and says itself that the program gives up for it; empty without.

    Not of what only serves the work, and not of an end that was meant.
    """
    lines = [line.strip() for line in facts.tail.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if not line.startswith(_FROM_A_TRACKER)), "")[:LONGEST_LAST]
    gave_up = _GAVE_UP.match(last)
    if gave_up is None or _NOT_THE_WORK.search(last) or _ON_PURPOSE.search(last):
        return ""
    subject = f"{gave_up['who'] or ''} {' '.join(gave_up['said'].split()[:FIRST_WORDS])}"
    return "" if _HELPER.search(subject) or _SERVER.search(subject) else last[:300]


def goes_through_tee(facts: LogFacts) -> bool:
    """Whether the script itself says that what it runs is sent through tee."""
    return _TEE.search(facts.tail) is not None


def find_last_exception(facts: LogFacts, *, piped: bool, closing: int = 0) -> str:
    """The job's own exception with which the output ends; empty when more follows it, or it is none of its own.

    `piped`: what it printed came through `tee`, so that the last lines before the traceback may stand behind it.
    `closing`: so many lines its shell prints itself at the end (`scripts.count_closing_lines`), and they may, too.
    """
    if not facts.exception:
        return ""
    late = LATE_LINES if piped else min(closing, LATE_LINES)
    if late and not piped and not _ended_a_program(facts):
        late = 0
    return facts.exception if ends_in_exception(facts, late) else ""


def _ended_a_program(facts: LogFacts) -> bool:
    """Whether the last traceback is of a program from its first line on, unannounced, and no step follows it."""
    before, _, after = facts.tail.rpartition(HEADER)
    told = before.rstrip("\n").rpartition("\n")[2]
    steps = any(map(PROGRESS.search, after.rpartition(facts.exception)[2].split("\n")))
    return _MODULE.match(facts.traceback) is not None and not _TOLD.search(told) and not steps


def find_lost_losses(facts: LogFacts) -> tuple[str, ...]:
    """The last losses that the output names, where none of them is finite; else nothing.

    Those that have it as a part of their name (``l1_loss``, ``Loss/train``) count where none is named plainly. What an
    exception says is none: a search that lives on with its next trial names one three times.
    """
    printed = _ABOUT_AN_ERROR.sub("", facts.tail)
    named = [match["value"] for match in _LOSS.finditer(printed)]
    values = (named or [match["value"] for match in _NAMED.finditer(printed) if _is_loss(match["name"])])[-LOSSES:]
    lost = [value for value in values if value.lower().lstrip("+-").startswith(("nan", "inf"))]
    return tuple(lost) if len(lost) == len(values) > 1 else ()


def _is_loss(name: str) -> bool:
    parts = set(_PART.split(name.lower()))
    return bool(parts & _LOSS_PARTS) and not parts & _NO_LOSS_PARTS


def find_farewell(facts: LogFacts) -> str:
    """The line near the end by which the job itself says that a signal asked it to leave; empty without."""
    lines = [line.strip() for line in facts.tail.splitlines() if line.strip()]
    for line in reversed(lines[-LAST_LINES:]):
        said = _FAREWELL.search(line)
        if said and not _HELPER.search(line[: said.start()]):
            return line[:300]
    return ""


def find_killed(facts: LogFacts, *, piped: bool) -> str:
    """The line by which a shell, or Python itself, says near the end that a signal killed a part of it; empty without.

    `piped`: as for `find_last_exception`.
    """
    lines = [line for line in facts.tail.splitlines() if line.strip()]
    for line in reversed(lines[-LAST_LINES:]):
        said = _SHELL_SAID.match(line.strip())
        if said and not _is_beside(said, lines):
            return line.strip()[:300]
    fatal = next((number for number in reversed(range(len(lines))) if lines[number].startswith(_FATAL)), None)
    if fatal is None:
        return ""
    after = [line for line in lines[fatal + 1 :] if not _OF_FATAL.match(line)]
    return lines[fatal][:300] if len(after) <= (LATE_LINES if piped else 0) else ""


def _is_beside(said: re.Match[str], lines: list[str]) -> bool:
    """Whether what was killed only served the work: a helper, a server, or what the script says that it ends itself."""
    command = said["command"] or ""
    if _HELPER.search(command) or _SERVER.search(command):
        return True
    # As `set -x` shows it.
    return any(line.startswith("+") and "kill" in line.split() and said["pid"] in line.split() for line in lines)
