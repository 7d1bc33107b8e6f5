"""Files of tests that need a library which may not be installed."""

from __future__ import annotations

import importlib.util

import pytest


def skip_without(library: str) -> None:
    """Leave the calling file out where the library is not installed.

    Unlike `pytest.importorskip` this imports nothing: each worker collects each file, and some libraries take seconds.
    """
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed", allow_module_level=True)
