"""Reads what Slurm's commands print. Pure; each text that it was made for stands in ``tests/fixtures/slurm``.

squeue and sacct are asked with separators of our own and only for fields that nobody can write into, but the last. Of
``scontrol show`` a value ends where the next known kind of word with ``=`` begins: names and comments may hold blanks,
and words that look like Slurm's own.
"""

from __future__ import annotations

from holdfast.model.pattern import compile_later
from holdfast.model.record import record, replace

SQUEUE_FORMAT = "%i|%T|%S|%M|%l|%r|%R|%o"
"""Job id, state, start, time used, time limit, reason, nodes or reason in brackets, command.

The command comes last, and is what its user wrote: line breaks too. Source: squeue(1), ``--format``, unchanged from
Slurm 20.02 to 25.05.
"""
SACCT_FIELDS = "JobID,State,ExitCode,MaxRSS"
MOST_TASKS = 100_000
"""Tasks of one line; more than any MaxArraySize in use are not told apart."""
_WORD = compile_later(r"(?:^|\s)([A-Z][A-Za-z0-9_/:]*)=")
_USER = compile_later(r"\sUserId=")
_JOB_ID = compile_later(r"(\d+)(?:_(\d+|\[[0-9,:%-]*(?:\.\.\.)?\]))?(?:\+(\d+))?\Z")
_TIME = compile_later(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?\Z")
_HOURS = compile_later(r"(\d+)-(\d+)\Z")
_SECONDS = compile_later(r"(\d+)\s*sec\Z")
_SIZE = compile_later(r"(\d+(?:\.\d+)?)([KMGTP]?)\Z")
_GRES = compile_later(r"gpu(?::([A-Za-z][A-Za-z0-9_.-]*))?:(\d+)")
_ENDLESS = frozenset({"UNLIMITED", "INFINITE", "NONE", "NOT_SET", "N/A", "INVALID", ""})


@record
class QueuedLine:
    """One job in ``squeue``. `nodes` is empty while it waits; of one that waits the start is what Slurm expects.

    `starts_at` is in seconds since 1970, `used_s` and `limit_s` in seconds; None: not told.
    """

    job_id: str
    state: str
    reason: str
    nodes: str
    command: str
    starts_at: float | None = None
    used_s: float | None = None
    limit_s: float | None = None

    @property
    def base(self) -> str:
        """The job's id; of a task of an array that of the array."""
        return self.job_id.split("_", maxsplit=1)[0]


@record
class AccountedJob:
    """One job in ``sacct``; `peak_bytes` is the largest MaxRSS of its steps, which is sampled, None without."""

    job_id: str
    state: str
    exit_code: str
    peak_bytes: int | None = None


def read_squeue(text: str, mark: str) -> tuple[QueuedLine, ...]:
    """The jobs in the output of squeue with ``{mark}|{SQUEUE_FORMAT}``, one for each task.

    What is no such line is left out: `mark` is a random word, which nobody can have in the arguments of a script.
    """
    found = []
    for line in text.split("\n"):
        parts = line.split("|", 8)
        if len(parts) == 9 and parts[0] == mark:
            _, job_id, state, starts, used, limit, reason, nodes, command = parts
            one = QueuedLine(
                job_id,
                state,
                reason,
                "" if nodes.startswith("(") else nodes,
                command,
                starts_at=read_moment(starts),
                used_s=read_duration(used),
                limit_s=read_duration(limit),
            )
            found += [replace(one, job_id=name) for name in list_ids(job_id)]
    return tuple(found)


def read_sacct(text: str) -> dict[str, AccountedJob]:
    """The jobs in the output of ``sacct --parsable2`` with `SACCT_FIELDS`, by id; the last line of one counts."""
    found: dict[str, AccountedJob] = {}
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) != 4:
            continue
        job_id, dot, _ = parts[0].partition(".")
        for name in list_ids(job_id):
            if not dot:
                found[name] = AccountedJob(name, parts[1], parts[2], read_size(parts[3]))
            elif name in found and (peak := read_size(parts[3])) is not None:
                found[name] = replace(found[name], peak_bytes=max(peak, found[name].peak_bytes or 0))
    return found


def list_ids(text: str) -> tuple[str, ...]:
    """The jobs that an id stands for: ``7``, ``7_3``, the tasks of ``7_[4-7%2]``, ``7`` of the components ``7+0``.

    Empty for what is no id. Of a list that Slurm has cut off (``7_[1-3,...]``) those that are named. Source: squeue(1),
    ``%i``; sacct(1), JobID.
    """
    found = _JOB_ID.match(text.strip())
    if found is None:
        return ()
    job, tasks, component = found.groups()
    if component is not None and int(component) != 0:
        # The leader stands for all of them.
        return (f"{job}+{component}",)
    if tasks is None or tasks.isdigit():
        return (job if tasks is None else f"{job}_{tasks}",)
    numbers: list[int] = []
    for part in tasks.strip("[]").partition("%")[0].split(","):
        first, dash, rest = part.partition("-")
        last, _, step = rest.partition(":")
        if not first.isdigit() or (dash and not last.isdigit()):
            continue
        several = range(int(first), int(last if dash else first) + 1, int(step) if step.isdigit() and int(step) else 1)
        numbers += several[: MOST_TASKS - len(numbers)]
    return tuple(f"{job}_{number}" for number in numbers)


def read_fields(line: str) -> dict[str, str]:
    """The words ``Name=value`` of one line of ``scontrol show ... --oneliner``; ``(null)`` is empty."""
    marks = list(_WORD.finditer(line))
    ends = [mark.start() for mark in marks[1:]] + [len(line)]
    found: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=False):
        value = line[mark.end() : end].strip()
        found.setdefault(mark[1], "" if value == "(null)" else value)
    return found


def read_job(text: str, job_id: str) -> dict[str, str]:
    """The words of one job in the output of ``scontrol show job --oneliner``; empty where it is not told for certain.

    All that is read here stands between the job's name, which ends at the one ``UserId=``, and the texts that people
    write (command, directory, comment). A name that brings a ``UserId=`` of its own makes all of it doubtful. `job_id`
    is Slurm's own number, or that of a task as ``7_3``. Source: slurm_sprint_job_info of api/job_info.c, 20.02 to
    25.05.
    """
    found = []
    for line in text.splitlines():
        parts = _USER.split(line)
        head = read_fields(parts[0].partition(" JobName=")[0])
        task = f"{head.get('ArrayJobId', '')}_{head.get('ArrayTaskId', '')}"
        if job_id in (head.get("JobId"), task):
            found.append((head, parts))
    if len(found) != 1 or len(found[0][1]) != 2:
        return {}
    (head, (begin, rest)), *_ = found
    name = begin.partition(" JobName=")[2]
    return {**read_fields(f"UserId={rest}"), **head, "JobName": name}


def read_config(text: str) -> dict[str, str]:
    """The lines ``Name = value`` of ``scontrol show config``."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): "" if value.strip() == "(null)" else value.strip() for name, equals, value in pairs if equals}


def read_moment(text: str) -> float | None:
    """Seconds since 1970 as Slurm prints them with ``SLURM_TIME_FORMAT=%s``; None: it says that it does not know."""
    text = text.strip()
    return float(text) if text.isascii() and text.isdigit() and len(text) <= 12 and int(text) else None


def read_duration(text: str) -> float | None:
    """Seconds of ``[days-][hours:]minutes:seconds``, ``30 sec``, ``1-00``, or a number of minutes; None: no limit.

    Source: sbatch(1), ``--time``; ``scontrol show config``.
    """
    text = text.strip()
    if text.upper() in _ENDLESS:
        return None
    if text.isascii() and text.isdigit():
        return int(text) * 60.0
    if found := _SECONDS.match(text):
        return float(found[1])
    if found := _HOURS.match(text):
        return (int(found[1]) * 24 + int(found[2])) * 3600.0
    found = _TIME.match(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    if found[1] is not None and found[2] is None:
        hours, minutes, seconds = minutes, seconds, 0  # days-hours:minutes
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


def read_size(text: str) -> int | None:
    """Bytes of ``1234K``, ``1.50G`` or ``0``; None where nothing is told. Source: sacct(1), MaxRSS."""
    found = _SIZE.match(text.strip())
    return None if found is None else int(float(found[1]) * 1024 ** " KMGTP".index(found[2] or " "))


def read_cards(gres: str) -> dict[str, int]:
    """How many cards of which type a node's ``Gres=`` names, as ``gpu:a100:4(S:0-1)``; the type may be empty."""
    found: dict[str, int] = {}
    for kind, count in _GRES.findall(gres):
        found[kind] = found.get(kind, 0) + int(count)
    return found
