"""Logs of the kernel as one text, in any of the forms in which they are written down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.kernel.parse import parse_lines, read_line

if TYPE_CHECKING:
    from holdfast.diagnosis.evidence import KernelEvent


def parse_text(text: str, *, trust_injected: bool = False, trust_unmarked: bool = False) -> tuple[KernelEvent, ...]:
    """The events of a text with one record or line of a log in each of its lines."""
    lines = [read_line(line) for line in text.split("\n") if line]
    return parse_lines(lines, trust_injected=trust_injected, trust_unmarked=trust_unmarked)
