"""A fake NVIDIA driver for tests: a real shared library, loaded through the normal library path."""

from __future__ import annotations

from .driver import GIB, FakeCard, FakeNvml, build_library, make_card

__all__ = ["GIB", "FakeCard", "FakeNvml", "build_library", "make_card"]
