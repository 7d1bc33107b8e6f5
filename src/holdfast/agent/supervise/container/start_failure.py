"""Why a container did not come up, from what its runtime's client and the first program inside have said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.host.container.runtime import LONGEST_WORDS
from holdfast.model.run import Refusal

from .room import NEVER_RAN

if TYPE_CHECKING:
    from holdfast.model.container import ResolvedImage
    from holdfast.model.identity import WaitStatus

    from .room import Room


def explain_absence(room: Room, image: str) -> Refusal | None:
    """The refusal where the first program inside found no command to run; else None."""
    for word, code, words, hint in NEVER_RAN:
        if name := room.read_word(word):
            return Refusal("exec", code, f"{name} {words} {image}", hint)
    return None


def explain_client(tail: list[bytes], image: ResolvedImage, status: WaitStatus | None) -> tuple[str, str]:
    """Why, and what to do, from the last lines of the output of a client that ended before the gate was opened."""
    text = " ".join(line.decode("utf-8", "replace").strip() for line in tail[-4:] if line.strip())
    if ("/bin/sh" in text or "exec pid1" in text) and "no such file" in text.lower():
        return "the image has no /bin/sh, by which holdfast begins", "take an image with a shell"
    remedy = f"try: {image.runtime.value} run {image.image}"
    if "mounting" in text:
        remedy = "see `container.binds`: what is mounted has to fit what the image has there"
    short = text if len(text) <= LONGEST_WORDS else text[-LONGEST_WORDS:].partition(" ")[2]
    return f"{short or 'it said nothing'} ({status.describe() if status is not None else 'ended'})", remedy
