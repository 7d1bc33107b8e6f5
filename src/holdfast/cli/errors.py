"""Turns exceptions into a message for people and an exit code for programs.

One table of reactions: our own errors say what they are; click's usage errors are 64; an operating system's refusal is
74; a broken pipe is silence; anything else is a bug, whose traceback goes to a file and never to the terminal.
With ``--json`` among the arguments the error is an object on standard output, for programs.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from holdfast import __version__
from holdfast.core.job import redact
from holdfast.core.near import find_near
from holdfast.desk.caller import CALLER
from holdfast.model.errors import EXIT_STOPPED, HoldfastError, InternalError, StorageError, UsageError

from .render import DONE, clean, flush_output, keep_done, print_json

if TYPE_CHECKING:
    import click

EXIT_BROKEN_PIPE = 141
"""As a shell reports SIGPIPE: the reader has left, and wants no more words."""

_ENVIRONMENT_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE}
)


JOB_COMMAND = "[-- COMMAND...]"
"""In the usage of a verb that takes the command of a job."""
HELP_ALL = "--help-all"
"""The help of a verb that takes a job, with every option of it."""
NEAR = 0.7
"""How alike a misspelt option and the one that is proposed are, without their dashes."""

_RUNS_BY_NAME = "runs have names and no tags: holdfast ls 'lr-*' lists those of a pattern, holdfast ls GROUP/ a group"
OPTIONS_ELSEWHERE = {
    ("holdfast logs", "--tail"): "write -n N, such as -n 5",
    (
        "holdfast queue move",
        "--after",
    ): "write --before JOB, with the one that is to follow, or --last: behind all others",
    ("holdfast ls", "--tag"): _RUNS_BY_NAME,
    ("holdfast ls", "--tags"): _RUNS_BY_NAME,
}
"""What other tools call an option of a command, to what to do here."""


def guard(call: Callable[[], int], argv: Sequence[str]) -> int:
    """Run `call`; return its exit code, or the code of the error that it raised, which has then been reported."""
    as_json = wants_json(argv)
    if CALLER.place is None:
        CALLER.words = tuple(argv)
    try:
        _soften(sys.stdout)
        DONE.clear()
        code = call()
        if not DONE:
            keep_done(f"the command itself ended with code {code}")
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return EXIT_STOPPED
    except Exception as error:  # noqa: BLE001 - the outermost barrier: it reports everything and hides nothing
        return _report_safely(translate(error, argv), as_json=as_json)
    finally:
        _discard_output()


def wants_json(argv: Sequence[str]) -> bool:
    """Whether ``--json`` stands among holdfast's own arguments (not behind ``--``)."""
    own = argv[: argv.index("--")] if "--" in argv else argv
    return "--json" in own


def report(error: HoldfastError, *, as_json: bool) -> int:
    """Tell a person, or with `as_json` a program, about `error`; returns its exit code."""
    message, hint = (name_commands(text, error, as_json=as_json) for text in (str(error), error.hint))
    if as_json:
        body = {
            "code": error.code,
            "message": message,
            "hint": hint,
            "exit_code": error.exit_code,
            "blame": error.blame.value,
            "transient": error.transient,
            **error.details,
        }
        print_json({"error": body})
        sys.stdout.flush()
    elif sys.stderr is not None:
        flush_output()
        lines = [f"holdfast: {clean(message, keep_newlines=True)}"]
        if hint:
            lines.append(f"  {clean(hint, keep_newlines=True)}")
        print("\n".join(lines), file=sys.stderr, flush=True)
    return error.exit_code


def name_commands(text: str, error: HoldfastError, *, as_json: bool) -> str:
    """A text of an error with its commands as they are typed at the desk, where a box has said it.

    Text on a box is printed through a stream that does that (`placed.from_desk`).
    """
    place = error.details.get("place") if CALLER.place is None else CALLER.place if as_json else None
    if not isinstance(place, str) or "holdfast " not in text:
        return text
    from holdfast.desk.route.hints import find_own_run, name_place  # lazy: only where a place is concerned

    return name_place(text, place, find_own_run(CALLER.words))


def _report_safely(error: HoldfastError, *, as_json: bool) -> int:
    try:
        return report(error, as_json=as_json)
    except OSError:
        pass
    try:
        # Standard output takes nothing; a person may still read this.
        return report(error, as_json=False)
    except OSError:
        # Nobody can be told; the exit code still speaks.
        return error.exit_code


def translate(error: Exception, argv: Sequence[str]) -> HoldfastError:
    """What is told of any exception; a bug's traceback is written to a file."""
    if isinstance(error, HoldfastError):
        return error
    import click

    if isinstance(error, click.exceptions.Abort):
        return UsageError("nothing was done: the answer was not yes")
    if isinstance(error, click.FileError):
        return StorageError(error.format_message())
    if isinstance(error, click.ClickException):
        return _from_click(error)
    if isinstance(error, OSError) and (error.filename is not None or error.errno in _ENVIRONMENT_ERRORS):
        named = isinstance(error.filename, (str, bytes))
        subject = f"{os.fsdecode(error.filename)}: " if named else "the output or a file could not be written: "
        hint = "see that it exists, has room and is yours"
        if named:
            return StorageError(f"{subject}{error.strerror or error}", hint=hint)
        done = f"; {DONE[0]}" if DONE else ""
        hint += "" if DONE else "; what the command did until then stays done"
        return StorageError(f"{subject}{error.strerror or error}{done}", hint=hint)
    return _record_crash(error, argv)


def _from_click(error: Exception) -> UsageError:
    import click

    assert isinstance(error, click.ClickException)
    context = getattr(error, "ctx", None)
    near = ""
    if isinstance(error, click.NoSuchOption):
        # click would show them by the alphabet, takes `--on` for near to `--command`, and drops words in another order.
        near = _find_ours(error.option_name, error.ctx) or _find_near_option(error)
        error = click.NoSuchOption(error.option_name, ctx=error.ctx)
    message = " ".join(error.format_message().rstrip(".").split())
    message += f". Did you mean {near!r}?" if near else ""
    message = message.replace("is not a valid integer range", f"is not a whole number{_say_range(error)}")
    message = message.replace("is not a valid integer", "is not a whole number")
    where = context.command_path if context is not None else "holdfast"
    proposed = [option for option in (near, *(getattr(error, "possibilities", None) or ())) if option]
    hint = f"`{name_help(context, proposed)}` shows what it takes"
    if isinstance(error, click.NoSuchOption) and (ours := OPTIONS_ELSEWHERE.get((where, error.option_name))):
        hint = f"{ours}; {hint}"
    if "extra argument" in message and where == "holdfast show":
        hint = "to compare two runs: holdfast show RUN --against OTHER; what they logged: holdfast metrics RUN OTHER"
    elif "extra argument" in message:
        hint += "; a value with a space in it is one word in quotes"
    if where == "holdfast queue edit" and isinstance(error, click.NoSuchOption) and not near:
        hint += "; to change the job: holdfast queue cancel JOB, then holdfast submit --name JOB with all it is to have"
    # One that has words besides ours may be the job's own.
    unsure = not near or _split_words(near) < _split_words(getattr(error, "option_name", ""))
    if isinstance(error, click.NoSuchOption) and unsure and error.ctx is not None:
        hint += _say_where_options_of_a_job_go(error.option_name, error.ctx)
    return UsageError(message[:1].lower() + message[1:], hint=hint)


def _say_range(error: click.ClickException) -> str:
    """Which numbers are taken, of a parameter with both bounds: `` from 1 to 65535``."""
    import click

    kind = getattr(getattr(error, "param", None), "type", None)
    if not isinstance(kind, click.IntRange) or kind.min is None or kind.max is None:
        return ""
    return f" from {kind.min} to {kind.max}"


def _find_near_option(error: click.NoSuchOption) -> str:
    """The option that was misspelt; the dashes, which all have, make none alike.

    Words in another order are the same option (``--memory-limit``), and so are more words than the one option has that
    is made of some of them (``--stop-grace``).
    """
    parameters = () if error.ctx is None else error.ctx.command.params
    every = {option: _split_words(option) for each in parameters for option in each.opts if option.startswith("--")}
    asked = _split_words(error.option_name)
    names = {option.lstrip("-"): option for option in error.possibilities or ()}
    within = [option for option, words in every.items() if words < asked]
    return (
        next((option for option, words in every.items() if words == asked), "")
        or names.get(find_near(error.option_name.lstrip("-"), names, cutoff=NEAR), "")
        or (within[0] if len(within) == 1 else "")
    )


def _split_words(option: str) -> frozenset[str]:
    """The words of an option, in whatever order."""
    return frozenset(option.lstrip("-").split("-"))


def _say_where_options_of_a_job_go(option: str, context: click.Context) -> str:
    """For a verb that takes a job's command: how an option of the job itself is written."""
    pieces = context.command.collect_usage_pieces(context)
    if JOB_COMMAND not in pieces:
        return ""
    if option in _list_options_of_run(context):
        return f"; it is one of `holdfast run` that `{context.command_path}` has not: holdfast run {option} ..."
    words = [context.command_path, *(piece for piece in pieces if not piece.startswith("["))]
    whole = f"{' '.join(words)} -- python train.py {option} ..."
    return f"; an option of your own program goes behind `--`, with the whole command: {whole}"


def _list_options_of_run(context: click.Context) -> set[str]:
    """The options of ``holdfast run``, which other verbs that take a job may lack."""
    import click

    verbs = context.find_root().command
    run = verbs.get_command(context, "run") if isinstance(verbs, click.Group) else None
    return set() if run is None else {option for parameter in run.params for option in parameter.opts}


def name_help(context: click.Context | None, options: Collection[str]) -> str:
    """The command whose help page has these options of a verb: ``holdfast run --help-all`` for those of a job."""
    if context is None:
        return "holdfast --help"
    parameters = [parameter for parameter in context.command.get_params(context) if {*options} & {*parameter.opts}]
    seldom = any(not getattr(parameter, "is_usual", True) for parameter in parameters)
    whole = any(HELP_ALL in parameter.opts for parameter in context.command.get_params(context))
    return f"{context.command_path} {HELP_ALL if seldom and whole else '--help'}"


def _find_ours(option: str, context: click.Context | None) -> str:
    """An option that is called by a part of its name, as `holdfast limit` calls limits, or by its key of a job file."""
    bare = option.lstrip("-")
    known = {name for parameter in (() if context is None else context.command.params) for name in parameter.opts}
    return next((name for name in (f"--limit-{bare}", f"--{bare.removeprefix('gpu-')}") if name in known), "")


def _record_crash(error: Exception, argv: Sequence[str]) -> InternalError:
    """Write the traceback where the user can find it, and say so."""
    what = f"{type(error).__name__}: {error}"
    try:
        path = _write_crash(error, argv)
    except OSError as problem:
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = f"{place.tb_frame.f_code.co_filename}:{place.tb_lineno}" if place is not None else "an unknown place"
        return InternalError(
            f"this is a bug in holdfast: {what} (at {where}; the traceback could not be written: {problem})",
            hint="please report it with the command that you typed; running jobs are not affected",
        )
    return InternalError(
        f"this is a bug in holdfast: {what}",
        hint=f"please report it with the file {path}; running jobs are not affected",
        details={"crash_file": path},
    )


def _write_crash(error: Exception, argv: Sequence[str]) -> str:
    # Only ever loaded for a report of a fault of ours.
    import platform
    import traceback

    directory = os.path.join(state_home(), "holdfast")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    path = f"{directory}/crash-{stamp}-{os.getpid()}.log"
    arguments, _ = redact.redact_argv(tuple(argv))
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    head = f"holdfast {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
    body = f"{head}arguments: {list(arguments)!r}\n\n{redact.redact_text(text)}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(body)
    return path


def state_home() -> str:
    """Where programs keep state of this user: ``XDG_STATE_HOME`` if absolute, else ``~/.local/state``.

    Source: XDG Base Directory Specification 0.8 (relative values are to be ignored).
    """
    stated = os.environ.get("XDG_STATE_HOME", "")
    return stated if os.path.isabs(stated) else os.path.expanduser("~/.local/state")


def _soften(stream: object) -> None:
    """Let names that are not valid UTF-8 be printed with escapes instead of ending the program."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """What a stream could not take is dropped, so that the interpreter's last flush has nothing to complain about."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
