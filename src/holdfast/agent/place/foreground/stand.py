"""The entry ``stand``: a supervisor in the foreground, which is the place's own process (docs/places.md).

A batch step of Slurm, process 1 of a container, the cell of a notebook: what the place starts, signals and kills, and
whose exit code it takes for the job's. Words::

    --root DIR (--order FILE | --run RUN_DIR) [--next REASON] [--evidence WORDS]
    [--term preemption|stop] [--grace-limit SECONDS] [--no-group] [--json]

Always true: a signal counts from the first instruction on, none ends this process, and none is lost between two
attempts; one process at a time supervises the run; the exit record is written before this process ends, and has the
same code. What the job writes goes to standard output as well (`relay`), what this process says to standard error.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.launch import open_log
from holdfast.agent.login_environment import choose_environ
from holdfast.agent.place.answer import MOST_INPUT_BYTES
from holdfast.agent.place.submit import create_or_find, read_order
from holdfast.agent.view.retries import is_followed
from holdfast.core.run.stop_record import EXIT_PREEMPTED
from holdfast.host.files import files
from holdfast.host.process.standard_streams import open_standard_descriptor
from holdfast.host.process.surroundings import find_allocation
from holdfast.model import wire
from holdfast.model.errors import EXIT_STOPPED, HoldfastError, NoSuchRun, StorageError, UsageError
from holdfast.model.foreground import Foreground
from holdfast.model.record import record, replace
from holdfast.model.run import StopCause

from .predecessor import Begin, Done, Settle, Stopped, Wanted, choose
from .relay import Relay

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.model.foreground import PlaceSignal

    class Supervise(Protocol):
        """`supervisor_process.supervise`."""

        def __call__(self, run_dir: str, attempt: int, reason: str, *, umask: int, stance: Stance) -> int: ...


TERMS = {"preemption": StopCause.PREEMPTION, "stop": StopCause.SIGNAL}
"""What TERM may stand for, by the word for it."""
VALUES = ("--root", "--order", "--run", "--next", "--evidence", "--term", "--grace-limit")
FLAGS = ("--no-group", "--json")


@record
class Stance:
    """What a supervisor in the foreground holds: the run's lock as a descriptor, and whether it proves anything."""

    foreground: Foreground
    lock: int
    real: bool


@record
class Call:
    """What the words ask for; `next_reason` is why another attempt is to follow one that is over."""

    root: str | None = None
    order: str | None = None
    run: str | None = None
    next_reason: str | None = None
    evidence: str | None = None
    term: StopCause = StopCause.SIGNAL
    grace_limit_s: float | None = None
    own_group: bool = True
    as_json: bool = False


def main(
    words: list[str],
    *,
    supervise: Supervise,
    explain: Callable[[int], PlaceSignal] | None = None,
    beside: Callable[[SupervisorContext], None] | None = None,
) -> int:
    """Be the entry ``stand``; the exit code of the run's outcome, or of an error before there was one.

    `explain` and `beside` are as of `Foreground`.
    """
    umask = os.umask(0o077)
    for number in (0, 1, 2):
        open_standard_descriptor(number)
    try:
        call = read_words(words)
        run_dir = _find_run(call)
        asked = Foreground(call.term, call.grace_limit_s, explain=explain, beside=beside)
        return _stand(run_dir, call, supervise, umask, asked)
    except Stopped as stopped:
        _say(str(stopped))
        return EXIT_PREEMPTED if stopped.cause is StopCause.PREEMPTION else EXIT_STOPPED
    except HoldfastError as error:
        return _refuse(error)
    except OSError as error:
        # A traceback would end with 1, which reads as the job's own code.
        hint = "see df, ulimit -a and free, then start it again: it goes on with what is there"
        return _refuse(StorageError(f"the system refuses what `stand` needs: {error}", hint=hint))


def _refuse(error: HoldfastError) -> int:
    _say(f"{error}\n  {error.hint}" if error.hint else str(error))
    return error.exit_code


def read_words(words: list[str]) -> Call:
    """What the words ask for.

    Raises:
        UsageError: they are not those of this version.
    """
    given: dict[str, str] = {}
    rest = list(words)
    while rest:
        name = rest.pop(0)
        if name in given or (name not in FLAGS and (name not in VALUES or not rest)):
            raise UsageError(f"stand does not take the word {name!r} so", hint="see holdfast's docs/places.md")
        given[name] = rest.pop(0) if name in VALUES else "yes"
    if ("--order" in given) == ("--run" in given):
        raise UsageError("stand wants either --order FILE or --run RUN_DIR")
    try:
        limit_s = float(given["--grace-limit"]) if "--grace-limit" in given else None
        term = TERMS[given.get("--term", "stop")]
    except (ValueError, KeyError):
        raise UsageError("--grace-limit is a number of seconds, --term is preemption or stop") from None
    if limit_s is not None and not 0 < limit_s < float("inf"):
        raise UsageError("--grace-limit is a number of seconds above 0")
    reason = given.get("--next")
    if reason is not None and not (reason.isascii() and reason.isidentifier() and len(reason) <= 32):
        raise UsageError(f"--next {reason!r}: a reason is one word of letters, digits and underscores")
    return Call(
        root=given.get("--root"),
        order=given.get("--order"),
        run=given.get("--run"),
        next_reason=reason,
        evidence=given.get("--evidence"),
        term=term,
        grace_limit_s=limit_s,
        own_group="--no-group" not in given,
        as_json="--json" in given,
    )


def _find_run(call: Call) -> str:
    if call.run is not None:
        run_dir = os.path.abspath(call.run)
        if not os.path.isfile(f"{run_dir}/{wire.RUN}"):
            raise NoSuchRun(f"{run_dir} holds no run", hint="name a run's directory")
        return run_dir
    assert call.order is not None
    try:
        with open(call.order, "rb") as file:
            content = wire.parse_object(file.read(MOST_INPUT_BYTES + 1), call.order)
    except (OSError, wire.WireError) as error:
        raise UsageError(f"the order {call.order} cannot be read: {error}") from error
    order = read_order(content)
    environ = dict(choose_environ(order.env_from, os.environ))
    # This process is the supervisor, whose own environment the job's is made from.
    os.environ.clear()
    os.environ.update(environ)
    return create_or_find(order, call.root, environ).run_dir


def _stand(run_dir: str, call: Call, supervise: Supervise, umask: int, foreground: Foreground) -> int:
    allocation = find_allocation(os.environ)
    foreground.own_group = call.own_group and allocation is None
    wanted = Wanted(run_dir, call.next_reason, call.evidence, call.term, allocation)
    out, err = os.dup(1), os.dup(2)
    os.chdir("/")
    while True:
        step = choose(wanted)
        if isinstance(step, Done):
            _say(step.words)
            return step.code
        stance = Stance(foreground, step.lock, step.real)
        try:
            if isinstance(step, Begin):
                return _supervise_all(run_dir, step, stance, call, (out, err), umask, supervise)
            _settle(run_dir, step, stance, umask, supervise)
        finally:
            os.close(step.lock)
            # From the attempt's log back to the place, which is to hear what goes wrong.
            os.dup2(err, 2)
        if foreground.heard:
            raise Stopped(foreground.heard, call.term, f"attempt {step.attempt} is settled, and no other was begun")
        # It was about the attempt that is settled now.
        wanted = replace(wanted, evidence=None)


def _settle(run_dir: str, step: Settle, stance: Stance, umask: int, supervise: Supervise) -> None:
    """Write the end of an attempt of which nobody is left."""
    _say(f"attempt {step.attempt} is settled: {step.words}")
    _connect(run_dir, step.attempt)
    supervise(run_dir, step.attempt, "adopt", umask=umask, stance=stance)


def _supervise_all(  # noqa: PLR0917 - all that one life in the foreground has
    run_dir: str, begin: Begin, stance: Stance, call: Call, streams: tuple[int, int], umask: int, supervise: Supervise
) -> int:
    """Supervise an attempt, and those that follow it by themselves; the code of the last outcome."""
    attempt, reason, foreground = begin.attempt, begin.reason, stance.foreground
    while True:
        relay = Relay(run_dir, attempt, streams, grace_limit_s=call.grace_limit_s, as_json=call.as_json)
        foreground.bystanders = frozenset({relay.pid})
        _connect(run_dir, attempt)
        begin.release()
        try:
            code = supervise(run_dir, attempt, reason, umask=umask, stance=stance)
        finally:
            followed = is_followed(run_dir, attempt)
            relay.finish(last=not followed)
        if not followed:
            return code
        attempt, reason = attempt + 1, "retry"
        if foreground.heard:
            # It is held back, and the first that the next attempt hears.
            os.kill(os.getpid(), foreground.heard)


def _connect(run_dir: str, attempt: int) -> None:
    """What a supervisor writes to its standard streams goes to its log: who reads ours may be slow, or gone."""
    log, null = open_log(run_dir, attempt), os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)


def _say(text: str) -> None:
    try:
        files.write_all(2, f"holdfast: {text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        return


__all__ = ["Call", "Stance", "main", "read_words"]
