"""Whom a patrol or a sentinel tells: the option ``--notify-command``, and the user's own defaults."""

from __future__ import annotations

import os
import shlex

from holdfast.agent.patrol.tell import Ways, read_command
from holdfast.core.messages.channels import list_targets
from holdfast.model.errors import UsageError
from holdfast.model.record import replace

from .shell_words import locate_program
from .user_defaults import read_channels


def read_words(command: str | None) -> str | None:
    """The command, its program by an absolute path where that is relative: it is run from the home directory.

    Raises:
        UsageError: it cannot be split into words, or it is empty.
    """
    if command is None:
        return None
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--notify-command: {error}", hint="quote it like a shell command") from error
    if not words:
        raise UsageError("--notify-command is empty", hint="name a program, or leave the option out")
    program = locate_program(words[0], os.getcwd())
    return command if program == words[0] else shlex.join([program, *words[1:]])


def read_ways() -> Ways | None:
    """Whom the user's own defaults name; None: nobody.

    Raises:
        HoldfastError: they cannot be read.
    """
    ways = Ways(*read_channels())
    return ways if list_targets(ways.notify, ways.channels) else None


def choose_ways(command: str | None, *, by_config: bool) -> Ways | None:
    """Whom to tell by these options.

    Raises:
        UsageError: the command cannot be split, or the user's own defaults name nobody.
        HoldfastError: they cannot be read.
    """
    command = read_words(command)
    typed = None if command is None else read_command(command)
    if not by_config:
        return typed
    ways = read_ways()
    if ways is None:
        raise UsageError("--notify: nobody is named", hint="holdfast config set notify.email ADDRESS")
    return ways if typed is None else replace(ways, notify=replace(ways.notify, command=typed.notify.command))
