"""What a desk starts on a box: ``PY -X utf8 -I -S .../HASH/hf.py WORD``; the bundle's own copy lies beside ``lib``.

WORD is base64 of JSON: ``argv``, ``env``, which is added to the environment, perhaps ``held`` (`take_input`). With argv
``agent-entry NAME ...`` it is an internal entry, which needs no click; else the command line. ``hf.py -- ARGV`` is the
command line for an entry of a clock. The directory and all above it are looked at first: where another account could
put files of its own in their place nothing of ours is run.

When the connection or the desk ends this process ends too (SIGHUP, which those who follow a run take for "detach"),
unless it is a supervisor. It stays small: Python compiles it at each start.
"""

from __future__ import annotations

import base64
import json
import os
import sys

ENTRY = "agent-entry"
SUPERVISORS = ("stand", "supervise", "queue-worker", "sentinel", "after-push")
"""Entries that outlive a connection."""
OLDEST = (3, 10)


def main(text: str | bytes, *, plain: bool = False) -> int:
    """Be what the JSON `text` says; its exit code. `plain`: nobody is connected."""
    here = os.path.dirname(os.path.abspath(__file__))
    call = json.loads(text)
    argv = call["argv"]
    internal = argv[:1] == [ENTRY]
    sys.path.insert(0, f"{here}/lib")
    if sys.version_info < OLDEST:
        version = ".".join(map(str, sys.version_info[:3]))
        what = f"{sys.executable} is Python {version}, and holdfast needs 3.10"
        return refuse("NoInterpreter", what, "name another in places.toml: python", internal)
    from holdfast.host.files.ownership import describe_weakness  # lazy: it is found from here on

    hint = "name a directory of your own as `root` of the place in places.toml"
    try:
        weakness = describe_weakness(here)
    except OSError as error:
        return refuse("StorageError", f"{here} cannot be looked at: {error}", hint, internal)
    if weakness:
        what = f"{here} is not used: another account could change what is run from it: {weakness}"
        return refuse("NotPermitted", what, hint, internal)
    # The runs root that the bundle lies in is the one that is meant.
    os.environ["HOLDFAST_RUNS"] = os.path.dirname(os.path.dirname(here))
    os.environ.update(call["env"])
    from holdfast.host.formats.own_bundle import note_use  # lazy: nothing else of ours is run before

    note_use(here)
    if not plain and not (internal and argv[1:2] and argv[1] in SUPERVISORS):
        end_with_connection(take_input() if call.get("held") else -1)
    if internal:
        from holdfast.agent.__main__ import main as run_entry  # lazy: one of the two ways

        return run_entry(argv[1:])
    sys.path.append(f"{here}/vendor")
    sys.argv = ["holdfast", *argv]
    from holdfast.cli.main import main as run_command  # lazy: one of the two ways

    return run_command()


def refuse(name: str, message: str, hint: str, internal: bool) -> int:  # noqa: FBT001 - one caller
    """Say why not: as an entry's error, or as the command line says it."""
    from holdfast.model import errors  # lazy: it may be that this Python cannot load anything else

    error = getattr(errors, name)(message, hint=hint)
    if internal:
        sys.stdout.write(json.dumps({"error": errors.describe(error)}) + "\n")
    else:
        sys.stderr.write(f"holdfast: {message}\n  {hint}\n")
    return int(error.exit_code)


def take_input() -> int:
    """The standard input, which a desk holds open as long as it lives; in its stead there is an empty one.

    A desk that was killed leaves its shared connection behind, which would take what is written here for days.
    """
    held, empty = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return held


def end_with_connection(held: int) -> None:
    """Have this process hung up when nobody can read any more what it writes, or when `held` ends (-1: there is none).

    Source: poll(2): POLLERR on the write end of a pipe whose read end was closed, POLLHUP on a socket or terminal.
    """
    import _thread  # not threading, which takes as long to load as all the rest of this file
    import select
    import signal

    poller = select.poll()
    for number in (1, 2):
        try:
            os.fstat(number)
        except OSError:
            continue
        poller.register(number, 0)
    if held >= 0:
        poller.register(held, select.POLLIN)  # nothing is ever written there

    listener = _thread.get_ident()

    def watch() -> None:
        poller.poll()
        # To the main thread, which then leaves whatever it waits in.
        signal.pthread_kill(listener, signal.SIGHUP)

    _thread.start_new_thread(watch, ())


def leave(code: object) -> None:
    """End this process without the interpreter's own end, during which a thread that wakes up aborts it.

    Source: Python's documentation, Py_FinalizeEx and "Daemon threads" (bpo-42969).
    """
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        pass  # nobody reads it
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--"]:
        # An entry of cron or systemd, written by a holdfast that ran from here: plain words, and no connection.
        sys.exit(main(json.dumps({"argv": sys.argv[2:], "env": {}}), plain=True))
    try:
        leave(main(base64.b64decode(sys.argv[1])))
    except SystemExit as error:
        leave(error.code)
    except (ImportError, SyntaxError) as error:
        # A file of ours is damaged, or gone: the desk, which knows it by these words, looks, and sends it again.
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        where = f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at else ""
        sys.stderr.write(f"holdfast: what was sent here cannot be loaded: {type(error).__name__}: {error} ({where})\n")
        leave(1)
