"""The errors a person can meet, one class per different reaction.

    HoldfastError
    ├── UsageError          64  the command line is wrong
    │   └── NoSuchName      66  no place, profile, group, job, card ... answers to that name
    ├── JobFileError        65  the job file is wrong (file, line, key)
    ├── NoSuchRun           66  no run answers to that name
    ├── Unsupported         64  this place cannot do that; the hint says what can
    ├── PlaceError          69  a place gave no answer; nothing follows for its runs
    │   ├── Unreachable     69  nothing was sent
    │   ├── CutOff          69  sent, and the link ended before the answer
    │   └── TooLate         69  no answer within the limit of the call
    ├── Taken               73  the run id belongs to another job
    ├── ResultMissing       73  the job ended well but its declared artifacts are not there
    │   └── NotCopied       73  it succeeded, and its results were not copied to where they last
    ├── StorageError        74  a file or directory cannot be read or written
    ├── ResourceBusy        75  a card is taken (who, since when, what)
    ├── StillAlive          76  KILL was sent and something is still there
    ├── NotPermitted        77  not yours
    │   └── Refused         77  a place does not let us in: key, password, second factor, host key
    ├── PreflightFailed     78  a check said no before anything started
    │   └── NoInterpreter   78  a place has no Python that we could use
    └── InternalError       70  our own invariant is broken

Each has a stable `code`, an `exit_code` after sysexits.h, `blame`, and `hint`: what to do next. The message says what
failed, on what, and what was seen.
"""

from __future__ import annotations

from enum import Enum


class Blame(str, Enum):
    """Who can mend it."""

    USER = "user"
    ENVIRONMENT = "environment"
    BUG = "bug"


class HoldfastError(Exception):
    """Root of every error that holdfast raises on purpose.

    `hint` is one sentence that begins with a verb; `details` is for ``--json``.
    """

    code = "error"
    exit_code = 70
    blame = Blame.BUG
    transient = False

    def __init__(self, message: str, *, hint: str = "", details: dict[str, object] | None = None) -> None:
        """Say what failed, on what, and what was seen; `hint` what to do."""
        super().__init__(message)
        self.hint = hint
        self.details = details or {}


class UsageError(HoldfastError):
    """The command line is wrong."""

    code, exit_code, blame = "usage", 64, Blame.USER


class JobFileError(HoldfastError):
    """The job file is wrong: the message begins with file, line and key."""

    code, exit_code, blame = "job_file", 65, Blame.USER


class NoSuchRun(HoldfastError):
    """No run answers to that id or name."""

    code, exit_code, blame = "no_such_run", 66, Blame.USER


class NoSuchName(UsageError):
    """Nothing answers to a name that is no run's: a place, profile, fact, group, sweep, job, card, key or topic."""

    code, exit_code = "no_such_name", 66


class Unsupported(UsageError):
    """This place, or this kind of place, cannot do that; the hint says what can."""

    code = "unsupported"


class PlaceError(HoldfastError):
    """A place gave no answer. Nothing follows from it for the runs there. `details` has `place` and `why`."""

    code, exit_code, blame, transient = "place", 69, Blame.ENVIRONMENT, True


class Unreachable(PlaceError):
    """Nothing was sent: no such name, refused, timed out, no banner. Another try may succeed."""

    code = "unreachable"


class CutOff(PlaceError):
    """It was sent, and the link ended before the end of the answer: the effect is unknown. Ask again by id."""

    code = "cut_off"


class TooLate(PlaceError):
    """No answer within the limit of the call: the effect is unknown."""

    code = "too_late"


class Taken(HoldfastError):
    """The run id exists there with another job."""

    code, exit_code, blame = "taken", 73, Blame.USER


class ResultMissing(HoldfastError):
    """The job ended with exit code 0 and its declared artifacts are missing, stale or empty."""

    code, exit_code, blame = "result_missing", 73, Blame.USER


class NotCopied(ResultMissing):
    """The job ended well and its results were not copied to storage that lasts; they are where it left them."""

    code, blame, transient = "not_copied", Blame.ENVIRONMENT, True


class StorageError(HoldfastError):
    """A file or directory that holdfast needs cannot be read or written."""

    code, exit_code, blame = "storage", 74, Blame.ENVIRONMENT


class ResourceBusy(HoldfastError):
    """A card, or all of them, is taken; the message names the holder."""

    code, exit_code, blame, transient = "busy", 75, Blame.ENVIRONMENT, True


class StillAlive(HoldfastError):
    """A process survived KILL so far (uninterruptible sleep): the lease stays held."""

    code, exit_code, blame, transient = "still_alive", 76, Blame.ENVIRONMENT, True


class NotPermitted(HoldfastError):
    """The run, the lease or the process belongs to somebody else."""

    code, exit_code, blame = "not_permitted", 77, Blame.USER


class Refused(NotPermitted):
    """A place does not let us in: key, password, second factor, host key. Never tried again by itself."""

    code = "refused"


class PreflightFailed(HoldfastError):
    """A check failed before anything was started; nothing is left behind."""

    code, exit_code, blame = "preflight", 78, Blame.USER


class NoInterpreter(PreflightFailed):
    """A place has no Python 3.10 or newer with the modules that we need; says what was found."""

    code = "no_interpreter"


class InternalError(HoldfastError):
    """Our own invariant is broken: please report it with the supervisor's log."""

    code, exit_code, blame = "internal", 70, Blame.BUG


EXIT_TIMED_OUT = 124
"""As timeout(1)."""
EXIT_STOPPED = 130
"""A run ended because somebody asked: as a shell reports SIGINT."""
EXIT_WARNED = 79
"""``holdfast preflight --strict``: nothing failed, but there are warnings."""


def list_errors() -> dict[str, type[HoldfastError]]:
    """Every class of error by its `code`: what another process reported can be raised here again."""
    found: dict[str, type[HoldfastError]] = {}
    todo: list[type[HoldfastError]] = [HoldfastError]
    while todo:
        cls = todo.pop()
        found.setdefault(cls.code, cls)
        todo += cls.__subclasses__()
    return found


def describe(error: HoldfastError) -> dict[str, object]:
    """An error as it crosses from a box to the desk, which raises it there again (`transfer.answers`)."""
    return {
        "code": error.code,
        "message": str(error),
        "hint": error.hint,
        "exit_code": error.exit_code,
        "details": error.details,
    }
