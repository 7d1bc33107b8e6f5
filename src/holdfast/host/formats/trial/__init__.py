"""Trying results by loading them, without their libraries and without running anything of them (docs/pull.md)."""
