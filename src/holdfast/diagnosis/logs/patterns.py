"""Every rule that we ship about the words of a log, in one tuple. Data only; docs/failure-rules.md lists them.

At one place of a log the earlier rule counts, so the special stands before the general: full shared memory before a
full disk, a command that is missing before a file that is.
"""

from __future__ import annotations

from .words.cards import CARDS
from .words.languages import LANGUAGES
from .words.launchers import LAUNCHERS
from .words.memory import MEMORY
from .words.network import NETWORK
from .words.program import PROGRAM
from .words.ranks import RANKS
from .words.storage import STORAGE
from .words.trackers import TRACKERS
from .words.world import WORLD

PATTERNS = (
    *MEMORY,
    *WORLD,
    *NETWORK,
    *TRACKERS,
    *LAUNCHERS,
    *STORAGE,
    *CARDS,
    *RANKS,
    *PROGRAM,
    *LANGUAGES,
)
