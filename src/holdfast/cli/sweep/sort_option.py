"""The option ``--sort``: by which number, and what is better."""

from __future__ import annotations

from holdfast.model.errors import UsageError


def parse_sort(text: str | None) -> tuple[str | None, str | None]:
    """(metric, min or max or None) of ``--sort loss:min``.

    Raises:
        UsageError: the part behind the colon is neither.
    """
    if text is None:
        return None, None
    name, colon, mode = text.rpartition(":")
    if not colon:
        return text, None
    if mode not in {"min", "max"}:
        raise UsageError(f"--sort: {mode!r} is neither min nor max", hint=f"--sort {name}:min")
    return name, mode
