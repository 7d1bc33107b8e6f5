"""The `holdfast` command: from the argument vector to an exit code.

The only place where errors become text. ``--version`` is answered before anything is imported; everything else goes
through `errors.guard`, so that no traceback ever reaches a person.
"""

from __future__ import annotations

import os
import sys

from holdfast import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is too slow to import for ``--version``
    import click

COMPLETE_VARIABLE = "_HOLDFAST_COMPLETE"
"""Set by the completion scripts when they ask what may come next."""
EXIT_INTERRUPTED = 130
"""`holdfast.model.errors.EXIT_STOPPED`, which is not loaded yet."""


def main(argv: list[str] | None = None) -> int:
    """Run the command line `argv` (default: this process's) and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        if argv is None:
            _open_standard_streams()
        if arguments in (["--version"], ["-V"]):
            return _print_version()
        if argv is None:
            from holdfast.agent.ahead import fork_for

            fork_for(arguments)
        from .errors import guard

        return guard(lambda: _dispatch(arguments), arguments)
    except KeyboardInterrupt:
        # While modules were being loaded, before anything was done.
        return EXIT_INTERRUPTED


def _open_standard_streams() -> None:
    """Put /dev/null where a parent closed descriptor 0, 1 or 2: else the next file opened would become that stream."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        stream = open(number, "w" if number else "r", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)


def _print_version() -> int:
    try:
        print(f"holdfast {__version__}", flush=True)
    except OSError as error:
        from .errors import guard

        problem = error
        return guard(lambda: _raise(problem), [])
    return 0


def _raise(error: OSError) -> int:
    raise error


def _dispatch(arguments: list[str]) -> int:
    """Invoke the group; its `main` is not used because that has answers of its own to Ctrl-C and broken pipes."""
    from click.exceptions import Exit

    from .group import holdfast

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
