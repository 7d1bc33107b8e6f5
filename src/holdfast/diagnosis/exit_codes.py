"""What each exit code of holdfast means: the table of docs/exit-codes.md, without its links."""

from __future__ import annotations

from holdfast.model.record import record
from holdfast.model.run import Outcome

from .ended.detect.signals import describe_signal, find_signal

LAST = 255


@record
class ExitCode:
    """One exit code: the outcomes of runs that end with it (none: the verb itself failed), and when that is."""

    code: int
    outcomes: tuple[Outcome, ...]
    when: str


EXIT_CODES: tuple[ExitCode, ...] = (
    ExitCode(
        0,
        (Outcome.SUCCEEDED,),
        "the job exited with 0 and every declared result is in place",
    ),
    ExitCode(
        1,
        (Outcome.FAILED,),
        "ended for a cause (disk full, memory, lost card; a save that failed, values that were not finite) "
        "although the job itself said 0 or nothing. `holdfast doctor`: something failed",
    ),
    ExitCode(
        64,
        (),
        "usage: the command line is wrong, or a place cannot do that",
    ),
    ExitCode(
        65,
        (),
        "the job file is wrong; the message has file, line and key. `holdfast checkpoints`: a checkpoint is "
        "not what was written",
    ),
    ExitCode(
        66,
        (),
        "nothing answers to that name: no such run, attempt, job, group, sweep, place, profile (or fact or "
        "verb of one), card, reservation, checkpoint, file of a run, logged value, fault, topic, or key of `config`. A "
        "word out of a fixed list (a verb, an option, a state) is 64",
    ),
    ExitCode(
        69,
        (),
        "the run cannot be observed from here, and how it ended is not known; or a place gave no answer: "
        "unreachable, cut off, too late (nothing follows for its runs). `holdfast gpus`, `gpus idle`, `gpus health`: "
        "the leases, or whether there is a card, could not be read (a box without a card is 0)",
    ),
    ExitCode(
        70,
        (),
        "a bug in holdfast; `supervisor.log` has the details",
    ),
    ExitCode(
        71,
        (Outcome.LOST, Outcome.FAILED),
        "nobody witnessed the job's end, also where that is not on record yet (`wait`, `attach` say what "
        "settles it); or the system refused to start its process",
    ),
    ExitCode(
        73,
        (Outcome.FAILED,),
        "the job exited with 0, but a declared result is missing, stale or empty; or the training succeeded "
        "and its results were not copied (`results`; class `sync_failed`). Of a place: the run id belongs to "
        "another job",
    ),
    ExitCode(
        74,
        (),
        "a file or directory that holdfast needs cannot be read or written",
    ),
    ExitCode(
        75,
        (Outcome.FAILED,),
        "busy: a card is taken, or was not free in the time to wait; the holder is named. `holdfast "
        "checkpoint`: nothing was saved in the time to wait",
    ),
    ExitCode(
        76,
        (),
        "KILL was sent and something is still there (it hangs in the kernel)",
    ),
    ExitCode(
        77,
        (),
        "not permitted: the run, the lease or the process is somebody else's; or a place does not let us in "
        "(key, password, second factor, host key)",
    ),
    ExitCode(
        78,
        (Outcome.FAILED,),
        "a check before the start said no; nothing was started. Of a place: it has no Python that could be used",
    ),
    ExitCode(
        79,
        (),
        "`holdfast preflight --strict`: nothing failed, but there are warnings",
    ),
    ExitCode(
        124,
        (Outcome.TIMED_OUT,),
        "a time limit passed: the job's, the attempt's, preflight's, or that of holding cards; or it made no "
        "progress and the job file says `stall: {action: stop}`; or the training saved and left shortly "
        "before its deadline",
    ),
    ExitCode(
        126,
        (Outcome.FAILED,),
        "the system refused to execute the command: seen only at its start, preflight finds most such cases first (78)",
    ),
    ExitCode(
        127,
        (Outcome.FAILED,),
        "the command was gone at its start; one that is missing before is found by preflight (78)",
    ),
    ExitCode(
        130,
        (Outcome.STOPPED,),
        "somebody asked: Ctrl-C, `holdfast stop`, or a signal to the supervisor",
    ),
    ExitCode(
        143,
        (Outcome.PREEMPTED,),
        "the box or the scheduler took it back (a supervisor in the foreground is told what a signal means); "
        "or the training was signalled from outside, saved and left",
    ),
)
"""Those of holdfast itself; every other one is the job's own."""


def find_exit_code(number: int) -> ExitCode | None:
    """The one with this number that has a meaning: holdfast's own, or 128 + a signal; None for any other."""
    own = next((row for row in EXIT_CODES if row.code == number), None)
    signal = find_signal(number, None)
    if own is not None or signal is None:
        return own
    return ExitCode(number, (), f"the job was ended by a signal (128 + {signal}). {describe_signal(signal)}")


def explain_exit_code(number: int) -> ExitCode | None:
    """As `find_exit_code`, and any other one as the job's own; None for what is no exit code."""
    own = ExitCode(number, (Outcome.FAILED,), "the job's own, which passes through: holdfast diagnose RUN says more")
    return find_exit_code(number) or (own if 0 <= number <= LAST else None)
