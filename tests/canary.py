"""A secret of a test, found wherever it is written, also in what base64 makes of it among other bytes."""

from __future__ import annotations

import base64


class Canary:
    """A value that must be nowhere but where it belongs."""

    def __init__(self, value: str) -> None:
        """At least 8 characters: what is left of fewer may stand anywhere by chance."""
        assert len(value) >= 8
        self.value = value
        data = value.encode()
        # Source: RFC 4648, section 4: three bytes become four characters, so it depends on where in three it begins.
        # Left out are characters at both ends that have bits of what stands beside it.
        encoded = [base64.b64encode(b"\0" * before + data) for before in range(3)]
        inner = [text[-(-before * 8 // 6) : (before + len(data)) * 8 // 6] for before, text in enumerate(encoded)]
        self._forms = (data, *inner)

    def is_in(self, said: str | bytes) -> bool:
        """Whether it stands there in any form."""
        data = said.encode(errors="surrogateescape") if isinstance(said, str) else said
        return any(form in data for form in self._forms)
