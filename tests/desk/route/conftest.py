"""The command line, for tests of where it goes."""

from __future__ import annotations

from tests.cli.conftest import holdfast

__all__ = ["holdfast"]
