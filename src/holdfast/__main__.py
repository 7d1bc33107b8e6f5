"""``python -m holdfast``: the same as the ``holdfast`` command."""

from __future__ import annotations

import sys
from importlib.util import find_spec

if __name__ == "__main__":
    if find_spec("click") is None:
        # A job's interpreter has the library on its path, and not what the command line needs.
        sys.exit(
            f"holdfast: the command line needs click, which {sys.executable} does not have; use the `holdfast` command "
            "of the environment where it is installed, or install click, PyYAML and rich here"
        )
    from holdfast.cli.main import main

    sys.exit(main())
