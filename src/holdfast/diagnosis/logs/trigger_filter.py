"""Filters which triggers can stand in a block of a log, without looking at each line. Pure.

Logs repeat themselves: lines differ in numbers. So a block is reduced to the *shapes* of its lines, the letters and
spaces alone, and each shape is judged once. What was taken from a trigger in the same way stands in the shape of every
line that holds the trigger, so nothing is missed; what was found too much is looked at in the real line anyway.
100 MB of progress lines have some thousand shapes. Text that never repeats is judged by its words, which do.
"""

from __future__ import annotations

from collections.abc import Iterable

_KEPT = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz \n\r\t")
_DROPPED = bytes(byte for byte in range(256) if byte not in _KEPT)
_TABLE = bytes.maketrans(b"\r\t", b"\n ")
MOST_SHAPES = 20_000
"""Remembered at most; a few MB of memory. What is not remembered is judged again."""
MOST_WORDS = 50_000
MOST_NEW = 1000
"""With more new shapes than this in one block the text does not repeat itself, and remembering would only cost."""


def shape_of(text: bytes) -> bytes:
    """Letters and spaces of the text; an overwritten line's states become lines."""
    return text.translate(_TABLE, _DROPPED)


class TriggerFilter:
    """Says which of its triggers are worth looking for in a block. One for each log: it remembers what it has seen."""

    def __init__(self, triggers: Iterable[bytes]) -> None:
        """Take the triggers; one without letters is always worth looking for."""
        self._always: set[bytes] = set()
        self._keys: dict[bytes, dict[bytes, list[bytes]]] = {}
        """Longest word of a trigger's shape, to the shapes and triggers that have it."""
        for trigger in set(triggers):
            shape = shape_of(trigger)
            key = max(shape.split(), key=len, default=b"")
            if key:
                self._keys.setdefault(key, {}).setdefault(shape.strip(b"\n"), []).append(trigger)
            else:
                self._always.add(trigger)
        self._hot: dict[bytes, set[bytes]] = {}
        self._cold: set[bytes] = set()
        self._mute: set[bytes] = set()
        self._telling: dict[bytes, tuple[bytes, ...]] = {}

    def sift(self, block: bytes) -> set[bytes]:
        """The triggers that can stand in this block."""
        shapes = set(shape_of(block).split(b"\n"))
        found = set(self._always)
        for shape in shapes & self._hot.keys():
            found |= self._hot[shape]
        new = shapes - self._hot.keys() - self._cold
        if new:
            found |= self._judge(new)
        return found

    def _judge(self, shapes: set[bytes]) -> set[bytes]:
        text = b"\n".join(shapes)
        hot: dict[bytes, set[bytes]] = {}
        found: set[bytes] = set()
        worth = len(shapes) <= MOST_NEW
        for key in self._find_keys(set(text.split())):
            for shape, triggers in self._keys[key].items():
                if shape not in text:
                    continue
                found.update(triggers)
                if worth:
                    for known in shapes:
                        if shape in known:
                            hot.setdefault(known, set()).update(triggers)
        if not worth:
            return found
        # A shape is remembered with all of its triggers or not at all.
        if len(self._hot) < MOST_SHAPES:
            self._hot.update(hot)
        if len(self._cold) < MOST_SHAPES:
            self._cold |= shapes - hot.keys()
        return found

    def _find_keys(self, words: set[bytes]) -> set[bytes]:
        """The keys that stand in one of the words; what is known of a word is not asked again."""
        found: set[bytes] = set()
        for word in words & self._telling.keys():
            found.update(self._telling[word])
        new = words - self._telling.keys() - self._mute
        if not new:
            return found
        joined = b" ".join(new)
        if len(new) > MOST_NEW:
            return found.union(key for key in self._keys if key in joined)
        telling: dict[bytes, tuple[bytes, ...]] = {}
        for key in self._keys:
            if key in joined:
                found.add(key)
                telling.update({word: (*telling.get(word, ()), key) for word in new if key in word})
        if len(self._telling) < MOST_WORDS:
            self._telling.update(telling)
        if len(self._mute) < MOST_WORDS:
            self._mute |= new - telling.keys()
        return found
