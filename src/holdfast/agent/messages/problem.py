"""Why a message to people was not delivered: the error, and its words."""

from __future__ import annotations


class NotDelivered(Exception):
    """A channel did not take the message; says why without an address.

    `passing`: it may take it in a moment, after the seconds that it has asked for.
    """

    def __init__(self, words: str, *, passing: bool = False, after_s: float = 0.0) -> None:
        """`words` are for people."""
        super().__init__(words)
        self.passing, self.after_s = passing, after_s


def describe_error(error: Exception) -> str:
    """What kept a message from somebody; what the network raises is told by its name: no module is loaded for it."""
    said = str(getattr(error, "strerror", None) or error)
    if isinstance(error, NotDelivered):
        return said
    if isinstance(error, TimeoutError):
        return "no answer in time"
    kind = type(error).__name__
    if kind == "gaierror":
        return f"its name was not found here: {said}"
    return f"TLS: {said}" if kind.startswith("SSL") else said or kind
