"""Tells people of what a patrol or a sentinel saw, by the ways that it was given."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping

from holdfast.agent.messages.deliver import LIMIT_S, Delivery, deliver
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model import wire
from holdfast.model.job import Channels, Notify
from holdfast.model.record import record


@record
class Ways:
    """Whom to tell, as a job says it."""

    notify: Notify = Notify()
    channels: Channels = Channels()


def read_command(command: str) -> Ways:
    """A command as its one way, in words as a shell would split them.

    Raises:
        ValueError: it has none.
    """
    words = tuple(shlex.split(command))
    if not words:
        raise ValueError("the command is empty")
    return Ways(Notify(command=words))


@record
class Told:
    """Whether anybody has taken a message, and what went wrong, in words; empty when nothing did."""

    taken: bool
    problem: str = ""


def tell(ways: Ways, message: Mapping[str, object]) -> Told:
    """Tell everybody. Bounded."""
    facts = {"host": os.uname().nodename, **wire.encode(dict(message))}

    def work() -> object:
        return wire.encode(deliver(ways.notify, ways.channels, facts))

    try:
        # A child of its own: whoever looks has threads and locks.
        answer = Offload(work).wait(LIMIT_S) if sys.platform == "linux" else work()
        done = wire.decode(Delivery, answer)
    except (OffloadFailed, OSError) as error:
        return Told(taken=False, problem=str(error))
    problems = [f"{label}: {problem}" for label, problem in done.problems.items() if problem]
    return Told(taken=len(problems) < len(done.problems), problem="; ".join(problems))


def run_notify_command(command: str, message: Mapping[str, object]) -> str:
    """Tell by one command; what went wrong, in words."""
    try:
        return tell(read_command(command), message).problem.removeprefix("command: ")
    except ValueError as error:
        return f"{command!r}: {error}"
