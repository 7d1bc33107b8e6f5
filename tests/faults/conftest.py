"""The machine of user-mode Linux for this folder too."""

from __future__ import annotations

from tests.uml.conftest import machine

__all__ = ["machine"]
