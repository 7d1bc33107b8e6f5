"""The `holdfast` command: from the argument vector to an exit code.

The only place where errors become text. ``--version`` is answered before anything is imported; everything else goes
through `errors.guard`, so that no traceback ever reaches a person.
"""

from __future__ import annotations

import gc
import os
import sys

from holdfast import __version__
from holdfast.host.process.standard_streams import open_standard_descriptor

from . import COMPLETE_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is too slow to import for ``--version``
    from collections.abc import Callable

    import click

GARBAGE = 50_000
"""Objects after which a command looks for garbage; Python's own 700 is for programs that live on."""
PLACE_VARIABLE = "HOLDFAST_PLACE"
"""Set by a desk that sends a command line here; see `holdfast.desk.caller`."""
EXIT_INTERRUPTED = 130
"""`holdfast.model.errors.EXIT_STOPPED`, which is not loaded yet."""


def main(argv: list[str] | None = None) -> int:
    """Run the command line `argv` (default: this process's) and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        if argv is None:
            _open_standard_streams()
            if os.environ.get("HOME") == "":
                # As where it is not set: the account's own home, never "/.local".
                del os.environ["HOME"]
            # A command loads and prints: there is little garbage, and to look for it costs a fifth of the loading.
            gc.set_threshold(GARBAGE)
        if arguments in (["--version"], ["-V"]):
            return _print_version()
        if argv is None and PLACE_VARIABLE in os.environ:
            from .placed.from_desk import begin, carry_out  # lazy: only where a desk has sent the command line

            begin(arguments)
            return _guard(lambda: carry_out(arguments, _dispatch), arguments)
        if may_name_place(arguments):
            from .placed.route import route  # lazy: only who names a place, or has some, pays for them

            return _guard(lambda: route(arguments, _dispatch, prestart=argv is None), arguments)
        if argv is None:
            from holdfast.agent.prestart import prestart_for  # lazy: --version and --help need nothing of it

            prestart_for(arguments)
        return _guard(lambda: _dispatch(arguments), arguments)
    except KeyboardInterrupt:
        # While modules were being loaded, before anything was done.
        return EXIT_INTERRUPTED
    finally:
        if argv is None:
            # The interpreter looks for garbage once more before it leaves; nothing is gained by that.
            gc.freeze()


def _guard(call: Callable[[], int], arguments: list[str]) -> int:
    from .errors import guard  # lazy: --version and --help need nothing of it

    return guard(call, arguments)


def may_name_place(arguments: list[str]) -> bool:
    """Whether places may be concerned: one is named, this machine has some, or runs no jobs itself.

    Costs nothing for who has none.
    """
    if COMPLETE_VARIABLE in os.environ:
        return False
    if sys.platform != "linux":
        return True
    for word in arguments:
        if word == "--":
            break
        if word.startswith("--on") or ":" in word:
            return True
    stated = os.environ.get("XDG_CONFIG_HOME", "")  # as `settings.user_file.config_home`, which loads much
    config = stated if os.path.isabs(stated) else os.path.expanduser("~/.config")
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.exists(f"{config}/holdfast/places.toml") or os.path.exists(f"{state}/holdfast/places")


def _open_standard_streams() -> None:
    """Put /dev/null where a parent closed standard input, output or error."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        open_standard_descriptor(number)
        stream = open(number, "w" if number else "r", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)


def _print_version() -> int:
    try:
        print(f"holdfast {__version__}", flush=True)
    except OSError as error:
        problem = error
        return _guard(lambda: _raise(problem), [])
    return 0


def _raise(error: OSError) -> int:
    raise error


def _dispatch(arguments: list[str]) -> int:
    """Invoke the group; its `main` is not used because that has answers of its own to Ctrl-C and broken pipes."""
    from click.exceptions import Exit

    from .group import holdfast  # lazy: --version and --help need nothing of it

    if (instruction := os.environ.get(COMPLETE_VARIABLE)) is not None:
        return _complete(holdfast, instruction)
    try:
        with holdfast.make_context("holdfast", list(arguments)) as context:
            result = holdfast.invoke(context)
    except Exit as leaving:
        return leaving.exit_code
    return result if isinstance(result, int) else 0


def _complete(group: click.Group, instruction: str) -> int:
    """Answer a shell's TAB. An error must not be printed into somebody's command line: then nothing is offered."""
    from click.shell_completion import shell_complete

    try:
        return shell_complete(group, {}, "holdfast", COMPLETE_VARIABLE, instruction)
    except Exception:  # noqa: BLE001 - see above
        return 1


if __name__ == "__main__":
    sys.exit(main())
