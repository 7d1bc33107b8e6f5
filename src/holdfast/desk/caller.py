"""Who reads what this process prints: whoever typed here, or a desk elsewhere that sent the command line.

A desk says in the environment which place it calls this box, whether people look at its terminal, how wide that is,
whether it shows colours, whether it follows a job's output, from where, who types there, which files of the desk are
the command's, and what was consented to. That is taken out of the environment before anything else reads it: a job
that this command starts must not inherit it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is too slow to import for ``--version``
    from collections.abc import MutableMapping
    from typing import TextIO

    from holdfast.desk.route.frames import Position

PLACE, WIDTH, COLOUR, NO_COLOUR, FOLLOW = "HOLDFAST_PLACE", "COLUMNS", "FORCE_COLOR", "NO_COLOR", "HOLDFAST_FOLLOW"
FILES, CONSENT, AUTHOR = "HOLDFAST_FILES", "HOLDFAST_CONSENT", "HOLDFAST_AUTHOR"
ENV_FROM, ZONE = "HOLDFAST_ENV_FROM", "HOLDFAST_ZONE"
WIDEST = 1000
UNKNOWN_WIDTH = 80


class Caller:
    """The desk that sent this command line; `place` is None where it was typed here.

    `width` is that of the desk's terminal, None where no people look at it. With `follows` a job's bytes go there with
    their place, from `position` on (None: from the beginning). `files` is as `desk.route.carry` wrote it. `author` is
    who types there, as ``anna@desk``. `consent` is the hash of the plan that was consented to, empty where nobody was
    asked yet, None where nobody can be. `words` is the command line, also where it was typed here; `order` the path of
    what it was resolved into at the desk (`model.order.ChangeOrder`), empty where it is as it was typed. `env_from` is
    as in `Place`, `zone` the desk's as `core.reader` has it.
    """

    def __init__(self) -> None:
        """Nobody: it was typed here."""
        self.place: str | None = None
        self.width: int | None = None
        self.colour = False
        self.follows = False
        self.position: Position | None = None
        self.files = self.author = self.order = ""
        self.consent: str | None = None
        self.words: tuple[str, ...] = ()
        self.env_from, self.zone = "none", ""

    def take(self, environ: MutableMapping[str, str]) -> None:
        """Read what a desk said, and take it out of the environment; without a desk that stays as it is."""
        place = environ.pop(PLACE, None)
        if not place:
            return
        width = environ.pop(WIDTH, "")
        self.place = place
        self.width = min(int(width), WIDEST) if width.isascii() and width.isdigit() and int(width) else None
        self.colour = environ.pop(COLOUR, "") == "1" and not environ.get(NO_COLOUR)
        environ.pop(NO_COLOUR, None)
        self.files, self.author = environ.pop(FILES, ""), environ.pop(AUTHOR, "")
        self.consent = environ.pop(CONSENT, None)
        self.env_from, self.zone = environ.pop(ENV_FROM, "none"), environ.pop(ZONE, "")
        stated = environ.pop(FOLLOW, None)
        if stated is not None:
            from .route.frames import read_position  # lazy: where a desk follows alone

            self.follows, self.position = True, read_position(stated)


CALLER = Caller()
"""The one of this process."""


def is_terminal(stream: TextIO | None) -> bool:
    """Whether people look at `stream`: a terminal here, or standard output of a desk that shows it on one."""
    if stream is None:
        return False
    try:
        return stream.isatty() or (CALLER.width is not None and stream.fileno() == 1)
    except (ValueError, OSError):
        return False


def has_colour(stream: TextIO | None) -> bool:
    """Whether colour is wanted on `stream`.

    Source: no-color.org (any non-empty ``NO_COLOR`` turns colour off).
    """
    if CALLER.place is not None:
        return CALLER.colour and is_terminal(stream)
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_width() -> int:
    """How many columns a line may have."""
    stated = os.environ.get(WIDTH, "")
    if CALLER.width is not None or (stated.isascii() and stated.isdigit() and int(stated)):
        return CALLER.width or int(stated)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or UNKNOWN_WIDTH
    except (ValueError, OSError, AttributeError):
        return UNKNOWN_WIDTH
