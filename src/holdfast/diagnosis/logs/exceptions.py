"""Python tracebacks: where they end, what was raised, and which class an exception has by itself. Pure."""

from __future__ import annotations

import re
from itertools import zip_longest

from holdfast.model.pattern import compile_later
from holdfast.model.record import record
from holdfast.model.verdict import FailureClass

from .lines import clean_line
from .words import errors

EXCEPTION = "exception"
"""Id of the match that stands for a Python traceback."""
HEADER = "Traceback (most recent call last)"
LONGEST_BARE = 500
LONGEST_TEXT = 1000
LONGEST_MESSAGE = 12
LONGEST_LABEL = 80
FEWEST_NUMBERS = 4
LONGEST_TRACEBACK = 400
"""Lines looked at for the end of a traceback; a deep recursion is folded by Python itself."""

REPORT_INDENT = "  "
"""Source: torch/distributed/elastic/multiprocessing/errors, which indents what a rank wrote into its error file."""

_RAISED = compile_later(
    r"(?P<name>(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*|(?:[A-Za-z_]\w*\.)+(?:error|timeout|gaierror|herror)|_queue\.Empty)"
    r"(?:\((?P<inner>\w+)\))?(?::(?:\s|$)(?P<text>.*))?$"
)
"""The last line of a traceback: a class, and after a colon its text (CPython traceback.py, format_exception_only).
Ray names what was raised inside too: ``RayTaskError(ValueError)``."""
_BARE = compile_later(
    r"[^A-Za-z_]{0,60}(?:(?:ERROR|CRITICAL|FATAL|E)\b[^A-Za-z_]{0,20})?(?:[\w.]{1,60} ?[-:] )?"
    r"(?P<raised>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exceeded|NotFound|Refused|Died): ?\S.*)$"
)
"""A line that names an exception although no traceback stands before it, behind what a logger puts first."""
_INSIDE = compile_later(r"\s|[│╭╰|+]|File \"|$")
"""How lines of a traceback's body begin: indented, framed (rich), grouped (ExceptionGroup), or empty.
Metaflow takes the indent away; then a line of source follows each line of a frame."""

_ENVIRONMENT = FailureClass.ENVIRONMENT
_CLASSES: dict[str, FailureClass] = {
    "MemoryError": FailureClass.OUT_OF_MEMORY,
    "OutOfMemoryError": FailureClass.GPU_OUT_OF_MEMORY,
    "ModuleNotFoundError": _ENVIRONMENT,
    "ImportError": _ENVIRONMENT,
    "FileNotFoundError": _ENVIRONMENT,
    "PermissionError": _ENVIRONMENT,
    "NotADirectoryError": _ENVIRONMENT,
    "IsADirectoryError": _ENVIRONMENT,
    "ConnectionError": FailureClass.TRANSIENT,
    "ConnectionRefusedError": FailureClass.COMMUNICATION,
    "ConnectionResetError": FailureClass.COMMUNICATION,
    "ConnectionAbortedError": FailureClass.COMMUNICATION,
    "BrokenPipeError": FailureClass.COMMUNICATION,
    "gaierror": FailureClass.TRANSIENT,
    "TimeoutError": FailureClass.COMMUNICATION,
    "DistBackendError": FailureClass.COMMUNICATION,
    "DistStoreError": FailureClass.COMMUNICATION,
    "DistNetworkError": FailureClass.COMMUNICATION,
    "KeyboardInterrupt": FailureClass.KILLED,
    "FloatingPointError": FailureClass.DIVERGED,
}
"""By the last part of the name; then its words decide; every other exception is the job's own (BUG)."""
_OF_THE_BOX = frozenset({FailureClass.DISK_FULL, FailureClass.STORAGE_FAULT, FailureClass.RESOURCE_LIMIT})
"""Java says of each of these that a file was not found, and in its text why."""
_OWN_CHECK = frozenset({"AssertionError", "KeyError", "TypeError", "AttributeError", "NameError", "IndexError"})
"""What a program says of itself, whatever words stand in its text."""
_CARD_LIBRARY = compile_later(r"(?i)(?:torch|cupy|cuda|paddle|jax|mlx|mxnet|numba|rmm)\b|.*(?:cuda|gpu)")
_SYMBOL = compile_later(r"\.so(?:\.[\d.]+)?: undefined symbol: ")
"""A library that lacks what another was built for, whatever the exception is called. Source: dlsym(3)."""
_OF_ARGUMENTS = frozenset({"ValueError", "NotImplementedError"})
_INNER = compile_later(r"(?i)(?:\braised |\bcaused by:? ?|\blast exception: |<class ')(?P<inner>[\w.]{4,100})")
"""How an exception that gave up names the one before it (tenacity, urllib3, google.api_core)."""
_BROKE = compile_later(
    r"(?:\w+\.)*(?:Connection(?:Reset|Aborted|Refused)Error|BrokenPipeError|TimeoutError|timeout)(?:$|: )"
    r"|(?:\w+\.)*\w*Error: .*\[Errno (?:32|101|103|104|110|111|113)\]"
)
"""What the system says of any connection, of a peer's as well: its end, no answer, no way. Source: errno(3)."""
_FRAME = compile_later(r'[^"\w]{0,40}File "(?P<file>[^"]+)", line \d')
LONGEST_FRAME = 4096
"""Characters of a line of a traceback that are looked at for its file."""
_CLIENT = compile_later(
    r"/(?:(?:http/client|urllib/request|ssl)\.py$|aiohttp/(?:client|connector)|(?:urllib3|requests|httpx|httpcore"
    r"|botocore|aiobotocore|boto3|s3transfer|huggingface_hub|google/(?:cloud|resumable_media|auth))/)"
)
"""A file of a client that speaks to a server: no rank is at the other end."""
_REQUEST = "(Request ID: "
"""Source: huggingface_hub, utils/_http.py: what was asked for stands behind an empty line."""
_PARSED = compile_later(
    r"Error: (?:while (?:parsing|scanning|constructing|composing|reading) [^:]+|\d+ validation errors? for \S+)$"
)
"""What was read when it was wrong, and no word of what and where. Source: PyYAML, yaml/error.py; pydantic-core."""
_INSTALLED = compile_later(
    r"\n *(?:from \S+ )?import [^\n]*\n(?:[ ^~]*\n)?"
    r' *File "[^"\n]*/(?:site|dist)-packages/[^"\n]*", line \d+, in <module>'
)
"""An installed package that was being imported."""


@record
class Traceback:
    """A traceback's text, its rank, and the line that was raised with its number; empty when the text ended before.

    `message` are the further lines of what was raised, where its first line does not end it.
    """

    text: str
    rank: int | None = None
    raised: str = ""
    number: int = 0
    message: tuple[str, ...] = ()


def judge_traceback(trace: Traceback) -> tuple[str, FailureClass] | None:
    """As `judge_exception`, by the further lines too, and by where it was raised.

    What is raised while an installed package is imported is a fault of the installation, whatever it is.
    """
    judged = judge_exception(trace.raised)
    if judged is not None and is_of_client(trace.raised, trace.text):
        return judged[0], FailureClass.TRANSIENT
    if judged is None or judged[1] is not FailureClass.BUG:
        return judged
    if _INSTALLED.search(trace.text) and not judged[0].endswith("SyntaxError"):
        return judged[0], _ENVIRONMENT
    is_own = judged[0] in _OWN_CHECK or _PARSED.search(trace.raised) is not None
    said_more = (_judge_line(line) for line in trace.message if not is_own)
    return judged[0], next((kind for kind in said_more if kind is not FailureClass.BUG), FailureClass.BUG)


def is_of_client(raised: str, traceback: str) -> bool:
    """Whether an exception's line says that a connection broke, and its traceback that it was one to a server."""
    if _BROKE.match(raised) is None or errors.LASTS.search(raised) is not None:
        return False
    frames = (_FRAME.match(line[:LONGEST_FRAME]) for line in traceback.split("\n"))
    return any(frame is not None and _CLIENT.search(frame["file"]) is not None for frame in frames)


def judge_exception(line: str) -> tuple[str, FailureClass] | None:
    """Name and class of an exception's line; None when it is no such line. ``SystemExit`` is an end, not a fault."""
    match = _RAISED.match(line.rstrip())
    if match is None or match["name"].endswith("SystemExit"):
        return None
    kind, text = _judge_name(match["name"]), (match["text"] or "")[:LONGEST_TEXT]
    if kind is FailureClass.BUG and text and match["name"] not in _OWN_CHECK:
        kind = judge_text(text, arguments=match["name"] in _OF_ARGUMENTS)
    elif _SYMBOL.search(text):
        kind = _ENVIRONMENT
    elif kind is _ENVIRONMENT and (named := _find(errors.ERRNO, text)) in _OF_THE_BOX and named is not None:
        kind = named
    elif match["name"] == "AssertionError" and errors.NONFINITE.search(text):
        kind = FailureClass.DIVERGED
    lasts = kind is FailureClass.TRANSIENT and errors.LASTS.search(text)
    return match["name"], _ENVIRONMENT if lasts else kind


def is_named(line: str) -> bool:
    """Whether the class of an exception's line comes from its name; words of its text are a weaker sign."""
    match = _RAISED.match(line.rstrip())
    return match is not None and _judge_name(match["name"]) is not FailureClass.BUG


def is_damaged(text: str) -> bool:
    """Whether an error speaks of data that cannot be read as what they should be, and not of the disk they lie on."""
    if _find(errors.ERRNO, text) is not None or errors.OF_A_DISK.search(text):
        return False
    raised = _RAISED.match(text.rstrip())
    named = raised is not None and errors.DAMAGED_NAMES.search(raised["name"]) is not None
    return named or errors.DAMAGED_TEXTS.search(text) is not None


def judge_text(text: str, *, arguments: bool = False) -> FailureClass:
    """The class by the words of an error's text; BUG where they say nothing of their own.

    `arguments`: what is not there may be a name among the arguments, and no file.
    """
    if errors.NONFINITE.search(text):
        return FailureClass.DIVERGED
    if (kind := _find(errors.ERRNO, text)) is not None:
        return kind
    if errors.QUOTING.search(text):
        return FailureClass.BUG
    if errors.MEMORY.search(text):
        return FailureClass.GPU_OUT_OF_MEMORY if errors.OF_A_CARD.search(text) else FailureClass.OUT_OF_MEMORY
    inner = _INNER.search(text)
    within = _judge_name(inner["inner"]) if inner is not None else FailureClass.BUG
    if within is not FailureClass.BUG:
        return within
    absent = _ENVIRONMENT if not arguments and errors.ABSENT.search(text) else FailureClass.BUG
    return _find(errors.TEXTS, text) or absent


def _judge_line(line: str) -> FailureClass:
    """The class of a line that is an exception's, or only a text."""
    judged = judge_exception(line)
    return judge_text(line[:LONGEST_TEXT]) if judged is None else judged[1]


def _judge_name(name: str) -> FailureClass:
    """The class by the words of the whole name where they say more than its last part, else by that, else BUG."""
    last = name.rpartition(".")[2]
    if last == "OutOfMemoryError" and "." in name:
        return FailureClass.GPU_OUT_OF_MEMORY if _CARD_LIBRARY.match(name) else FailureClass.OUT_OF_MEMORY
    if last in _CLASSES:
        return _CLASSES[last]
    return _find(errors.NAMES, name) or _CLASSES.get(last, FailureClass.BUG)


def _find(table: tuple[tuple[re.Pattern[str], FailureClass], ...], text: str) -> FailureClass | None:
    return next((kind for words, kind in table if words.search(text)), None)


def find_bare_exception(lines: list[str]) -> str:
    """The exception that the last of these lines names without a traceback; empty without one."""
    for raw in reversed(lines):
        text = clean_line(raw)[1].strip()
        if text:
            match = _BARE.match(text[:LONGEST_BARE])
            return "" if match is None else match["raised"]
    return ""


def read_traceback(lines: list[str]) -> Traceback:
    """The traceback that begins with the first of these raw lines; lines of other ranks between are left out.

    torchrun's report moves the lines to the right; IPython names the exception before the traceback, Ray within it.
    What stands before the first line, and in the same form before the next ones (a logger's, pdsh's, spaces), is taken
    off.
    """
    rank, head = clean_line(lines[0]) if lines else (None, "")
    before = head[: max(0, head.find(HEADER))]
    kept = [head[len(before) :]]
    moved = REPORT_INDENT if before.rstrip().endswith("traceback :") else ""
    named = before.strip() if before.endswith("  ") and judge_exception(before.strip()) else ""
    label = _find_label(before, lines[1:2])
    fallback: Traceback | None = None
    for number, raw in enumerate(lines[1:LONGEST_TRACEBACK], 1):
        owner, text = clean_line(raw)
        begin = label.match(text) if label is not None else None
        if owner != rank or (label is not None and begin is None):
            continue
        text = text[begin.end() if begin is not None else 0 :].removeprefix(moved)
        if _INSIDE.match(text) or kept[-1].startswith("File ") or (named and not text.startswith(named)):
            kept.append(text)
            continue
        raised = _RAISED.match(text.rstrip())
        if raised is None and not text.startswith("SystemExit"):
            break
        message = _read_message(text, lines[number + 1 : number + 1 + LONGEST_MESSAGE])
        found = Traceback("\n".join((*kept, text)), rank, text.strip(), number, message)
        inner = raised["inner"] if raised is not None else None
        if not inner or fallback is not None:
            return found
        fallback, named = found, inner
        kept.append(text)
    return fallback or Traceback("\n".join(kept).rstrip(), rank)


def _find_label(before: str, following: list[str]) -> re.Pattern[str] | None:
    """The form of what stands before each line of a traceback; None where nothing does.

    Many numbers are a time, which goes on; few may be a host's name.
    """
    if not before or len(before) > LONGEST_LABEL or not following:
        return None
    parts = re.split(r"\d+", before)
    form = re.compile(r"\d+".join(map(re.escape, parts)) if len(parts) > FEWEST_NUMBERS else re.escape(before))
    return form if form.match(clean_line(following[0])[1]) else None


def is_open_end(raised: str) -> bool:
    """Whether the first line of an exception says little without the next.

    It ends in a colon, or in a request's id, or says only what was read.
    """
    text = raised.rstrip()
    _, found, request = text.removesuffix(".").rpartition(_REQUEST)
    is_request = found != "" and 0 < request.find(")") == len(request) - 1
    return text.endswith(":") or is_request or _PARSED.search(text[:LONGEST_BARE]) is not None


def _read_message(raised: str, following: list[str]) -> tuple[str, ...]:
    """The further lines of an exception's text: what is indented, and all up to an empty line behind an open end.

    What a parser says goes no further than its places, which are indented.
    """
    is_open, is_parsed = is_open_end(raised), _PARSED.search(raised.rstrip()[:LONGEST_BARE]) is not None
    found: list[str] = []
    texts = [clean_line(raw)[1] for raw in following]
    for text, after in zip_longest(texts, texts[1:], fillvalue=""):
        if HEADER in text or (found and not text.strip()):
            break
        if not text.strip():
            continue
        if is_parsed and not (text[0].isspace() or after[:1].isspace()):
            break
        if not (is_open or text[0].isspace() or text.startswith((": ", ", "))):
            break
        found.append(text.strip())
    return tuple(found)
