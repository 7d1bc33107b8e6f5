"""The ``holdfast`` command, also as ``python -m holdfast``.

Nothing else is loaded before `main` is called, so that a Ctrl-C while the program loads ends it without a traceback.
"""

from __future__ import annotations

import sys

EXIT_INTERRUPTED = 130
"""`holdfast.model.errors.EXIT_STOPPED`, which is not loaded yet."""


def main() -> int:
    """Load the command line, and run that of this process; answers its exit code."""
    try:
        from holdfast.cli.main import main as run  # lazy: loaded here, where a Ctrl-C meanwhile is answered

        return run()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _refuse_without_click() -> None:
    """A job's interpreter has the library on its path, and not what the command line needs."""
    from importlib.util import find_spec  # lazy: the installed command comes with what it needs

    if find_spec("click") is None:
        sys.exit(
            f"holdfast: the command line needs click, which {sys.executable} does not have; use the `holdfast` command "
            "of the environment where it is installed, or install click and PyYAML here"
        )


if __name__ == "__main__":
    _refuse_without_click()
    sys.exit(main())
