"""Regular expressions that are compiled at their first use: long ones cost milliseconds, and few processes need all.

What a type checker sees is a compiled pattern. Only its methods may be used: the functions of `re` do not take one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import AnyStr

_WAITING: list[_Pattern] = []
"""Those that were not asked for anything yet."""


class _Pattern:
    """Has no attribute of a compiled pattern until one is asked for, then all that are used."""

    def __init__(self, text: str | bytes, flags: int = 0) -> None:
        self._text, self._flags = text, flags
        _WAITING.append(self)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a pattern has
        compiled = self.__dict__.get("_compiled") or re.compile(self._text, self._flags)
        self._compiled = compiled
        value = getattr(compiled, name)
        # Found without us from now on.
        setattr(self, name, value)
        return value


if TYPE_CHECKING:

    def compile_later(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
        """As `re.compile`; what is wrong with `text` shows at its first use."""
        raise NotImplementedError(text, flags)

else:
    compile_later = _Pattern


def compile_now() -> None:
    """Compile every pattern of the modules that are loaded: for a process that is about to fork."""
    while _WAITING:
        pattern: Any = _WAITING.pop()
        for name in ("search", "match", "fullmatch", "sub", "finditer", "findall", "split"):
            getattr(pattern, name)
