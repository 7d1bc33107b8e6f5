"""Every rule that we ship about the words of a log, in one tuple. Data only; docs/failure-rules.md lists them.

At one place of a log the earlier rule counts, so the special stands before the general: full shared memory before a
full disk, a command that is missing before a file that is.
"""

from __future__ import annotations

from .words_cards import CARDS
from .words_memory import MEMORY
from .words_program import PROGRAM
from .words_ranks import RANKS
from .words_storage import STORAGE
from .words_world import WORLD

PATTERNS = (*MEMORY, *WORLD, *STORAGE, *CARDS, *RANKS, *PROGRAM)
