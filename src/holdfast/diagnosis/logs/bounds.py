"""Bounds the work of a user's regular expression, so that no rule can hang a diagnosis. Pure.

Python's expressions backtrack, and some need more steps than there is time (``(a+)+$``). There is no time limit in the
module, so a rule may use only what can be bounded by reading it: single characters and classes with a quantifier,
groups without one (but ``?``), alternatives. No references back, no looking around, no repeated groups.

The bound is the product of the ways to match: each quantifier can end at as many places as the looked-at line is long,
unless the character behind it can not be one of its own. An expression that may begin anywhere costs another factor.
"""

from __future__ import annotations

import re

from holdfast.model.pattern import compile_later
from holdfast.model.record import record

LONGEST_PATTERN = 500
WIDEST = 512
"""Characters of a line that a user's rule sees, around the words in `contains`."""
MOST_STEPS = WIDEST**3
"""About a second in the worst case."""

_TOKEN = compile_later(
    r"""
    (?P<flags>\(\?[aims]+\)) | (?P<open>\((?:\?:|\?P<[A-Za-z_]\w*>)?(?!\?)) | (?P<close>\)) | (?P<bar>\|)
    | (?P<edge>[$^]|\\[bBAZ]) | (?P<bad>\(\?|\\[1-9]|\\g)
    | (?P<atom>\[\^?\]?(?:\\.|[^\]\\])*\]|\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\.|\.|[^\\()|$^*+?{])
    | (?P<many>[*+?]|\{\d*,?\d*\})(?P<lazy>[?+]?) | (?P<brace>\{)
    """,
    re.VERBOSE | re.DOTALL,
)
_ALPHABET = [chr(code) for code in range(9, 127)] + ["\xe9"]


@record
class _Piece:
    """One atom with its quantifier."""

    text: str
    least: int
    most: int

    @property
    def ways(self) -> int:
        return min(self.most, WIDEST) - self.least + 1


def check_expression(pattern: str) -> str:
    """Why the expression is not accepted; empty when it is."""
    if len(pattern) > LONGEST_PATTERN:
        return f"is longer than {LONGEST_PATTERN} characters"
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"is no regular expression: {error}"
    pieces, factor, problem = _read_pieces(pattern)
    if problem:
        return problem
    if re.search(r"[*+?}]\)*$|\.[*+]\)*\$$", pattern):
        # With nothing behind it, or with all of the rest of a line in it, a quantifier is never tried again.
        pieces[-1] = None
    anchored = re.match(r"(?:\(\?[aims]+\))?\^", pattern) and "|" not in pattern
    steps = factor * (1 if anchored else WIDEST)
    for piece, follower in zip(pieces, [*pieces[1:], None], strict=True):
        if piece is not None and piece.ways > 1 and not _is_decided(piece, follower):
            steps *= piece.ways
        if steps > MOST_STEPS:
            return "can need too many steps: begin it with ^, or use fewer of * and + (say [^:]* for .* before a colon)"
    return ""


def literal_begin(pattern: str) -> str:
    """The plain text that each match begins with; empty when the expression does not begin with any."""
    if "|" in pattern or pattern.startswith("("):
        return ""
    begin = re.match(r"\^?((?:[A-Za-z0-9 _:/'\"=,<>@%&;~`!-]|\\[.()\[\]{}*+?|^$/:-])*)", pattern)
    text = "" if begin is None else begin[1]
    rest = pattern[begin.end() :] if begin is not None else ""
    if rest[:1] in ("*", "?", "{") and text:
        text = text[:-2] if text[-2:-1] == "\\" else text[:-1]
    return re.sub(r"\\(.)", r"\1", text)


def _read_pieces(pattern: str) -> tuple[list[_Piece | None], int, str]:
    """Atoms in order (None where alternatives or an optional group part them), the ways of those, or a refusal."""
    pieces: list[_Piece | None] = []
    factor, position, before = 1, 0, ""
    while position < len(pattern):
        match = _TOKEN.match(pattern, position)
        kind = "bad" if match is None else str(match.lastgroup if match.lastgroup != "lazy" else "many")
        if match is None or kind == "bad":
            return [], 1, f"uses {pattern[position : position + 3]!r}, which has no known bound"
        position = match.end()
        if kind == "open":
            # A group may be optional or have alternatives: nothing is said about what follows.
            pieces.append(None)
        elif kind == "atom":
            pieces.append(_Piece(match[0], 1, 1))
        elif kind == "brace":
            pieces.append(_Piece(r"\{", 1, 1))
        elif kind == "bar":
            pieces.append(None)
            factor *= 2
        elif kind == "many":
            if before == "close" and match["many"] != "?":
                return [], 1, "repeats a group, which has no known bound"
            factor *= _quantify(pieces, match["many"], before)
        before = kind
    return pieces, factor, ""


def _quantify(pieces: list[_Piece | None], mark: str, before: str) -> int:
    """Give the last atom its quantifier; an optional group counts as one more way."""
    if before == "close":
        pieces.append(None)
        return 2
    last = pieces[-1] if pieces else None
    if last is not None:
        least, most = _limits(mark)
        pieces[-1] = _Piece(last.text, least, most)
    return 1


def _limits(mark: str) -> tuple[int, int]:
    if mark in "*+?":
        return (1 if mark == "+" else 0), (1 if mark == "?" else WIDEST)
    low, comma, high = mark.strip("{}").partition(",")
    least = min(int(low or 0), WIDEST)
    return least, min(int(high), WIDEST) if high else (WIDEST if comma else least)


def _is_decided(piece: _Piece, follower: _Piece | None) -> bool:
    """Whether the quantifier can end at one place only: what must follow is none of its own characters."""
    return follower is not None and follower.least > 0 and not (_letters(piece.text) & _letters(follower.text))


def _letters(atom: str) -> frozenset[str]:
    expression = re.compile(atom, re.DOTALL | re.IGNORECASE)
    return frozenset(letter for letter in _ALPHABET if expression.fullmatch(letter))
