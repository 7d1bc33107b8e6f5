r"""A netrc file: one machine's entry out of it, or into it, with every other byte left as it is. Pure.

Sources: netrc(5) of GNU inetutils, "The .netrc file" of curl, `netrc` of Python: words between white space, an entry
on one line or on several, words in double quotes with ``\`` as escape, comments from ``#`` where a key could stand,
``default`` after all machines, ``macdef NAME`` up to an empty line. A word is carried as it is written, quotes too.

No error repeats a word of the file: any of them may be a password.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.model.pattern import compile_later
from holdfast.model.record import record

_MACHINE = compile_later(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")
_WORD = compile_later(r'"(?:\\[^\n]|[^"\\\n])*"|[^\s"][^\s]*')
_MACRO_END = compile_later(r"\n[ \t\r]*\n")
_ANY = compile_later(r"\S")
_KEYS = ("login", "account", "password")
LONGEST_WORD = 4096


class NetrcError(ValueError):
    """It is not a netrc file, or not one machine's; the message names the line and never a word of it."""


@record
class NetrcEntry:
    """What is said of one machine, words as they are written; None: not said."""

    machine: str
    login: str | None = None
    account: str | None = None
    password: str | None = None


@record
class _Span:
    """An entry and where it is: from its first word to behind its last. `machine` None: ``default`` or a macro."""

    begin: int
    end: int
    machine: str | None
    words: dict[str, str]


def is_machine(name: str) -> bool:
    """Whether this can be a machine's name."""
    return _MACHINE.fullmatch(name) is not None


def find_entry(text: str, machine: str) -> NetrcEntry | None:
    """The entry of a machine; None without one.

    Raises:
        NetrcError: the file cannot be read as a netrc, or has two entries for the machine that differ.
    """
    found = [span.words for span in _read(text) if span.machine == machine]
    if any(words != found[0] for words in found):
        raise NetrcError(f"has {len(found)} entries for {machine} that differ")
    return build_entry(machine, found[0]) if found else None


def build_entry(machine: str, words: dict[str, str]) -> NetrcEntry:
    """An entry of words that came from elsewhere.

    Raises:
        NetrcError: a word could not stand in a netrc, or there is no password.
    """
    if not is_machine(machine):
        raise NetrcError("that is no machine's name")
    for key, word in words.items():
        if key not in _KEYS or len(word) > LONGEST_WORD or not _WORD.fullmatch(word):
            raise NetrcError(f"the entry of {machine} has a {key if key in _KEYS else 'word'} that cannot stand there")
    if "password" not in words:
        raise NetrcError(f"the entry of {machine} has no password")
    return NetrcEntry(machine, **words)


def merge_entry(text: str, entry: NetrcEntry) -> str:
    """The file with this entry in the place of those that the machine had, else before ``default`` or at the end.

    Raises:
        NetrcError: the file cannot be read as a netrc.
    """
    spans = _read(text)
    old = [span for span in spans if span.machine == entry.machine]
    block = _write(entry)
    if not old:
        at = next((span.begin for span in spans if span.machine is None and not span.words.get("macro")), len(text))
        before = text[:at]
        gap = "" if not before or before.endswith("\n") else "\n"
        return f"{before}{gap}{block}\n{text[at:]}"
    pieces, at = [], 0
    for number, span in enumerate(old):
        pieces += [text[at : span.begin], block if number == 0 else ""]
        at = span.end
    return "".join([*pieces, text[at:]])


def _write(entry: NetrcEntry) -> str:
    stated = (("login", entry.login), ("account", entry.account), ("password", entry.password))
    return f"machine {entry.machine}" + "".join(f"\n  {key} {word}" for key, word in stated if word is not None)


def _read(text: str) -> list[_Span]:
    """Every entry, in order."""
    spans: list[_Span] = []
    words = _Words(text)
    while (found := words.take_key()) is not None:
        begin, key = found
        if key == "macdef":
            words.take_value("macdef")
            words.skip_macro()
            spans.append(_Span(begin, words.at, None, {"macro": "yes"}))
        elif key in ("machine", "default"):
            machine = words.take_value(key) if key == "machine" else None
            spans.append(_Span(begin, words.at, machine, {}))
        elif key in (*_KEYS, "user") and spans and "macro" not in spans[-1].words:
            last = spans[-1]
            named = {**last.words, "login" if key == "user" else key: words.take_value(key)}
            spans[-1] = _Span(last.begin, words.at, last.machine, named)
        else:
            raise words.complain("has a word that is none of a netrc's")
    return spans


class _Words:
    """The words of the text one by one; `at` is behind the last."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def take_key(self) -> tuple[int, str] | None:
        """The next word where a key stands, and where it begins; comments are skipped. None at the end."""
        for begin in self._find_word():
            if self._text[begin] != "#":
                return begin, self._take(begin)
            line_end = self._text.find("\n", begin)
            self.at = len(self._text) if line_end < 0 else line_end
        return None

    def take_value(self, key: str) -> str:
        """The word behind a key."""
        for begin in self._find_word():
            return self._take(begin)
        raise self.complain(f"ends behind the word {key}")

    def skip_macro(self) -> None:
        """Go behind a macro: it ends with an empty line."""
        found = _MACRO_END.search(self._text, self.at)
        self.at = len(self._text) if found is None else found.end() - 1

    def complain(self, what: str) -> NetrcError:
        line = self._text.count("\n", 0, self.at) + 1
        return NetrcError(f"line {line} {what}")

    def _find_word(self) -> Iterator[int]:
        """Where the next word begins, again and again; nothing at the end."""
        while (found := _ANY.search(self._text, self.at)) is not None:
            yield found.start()

    def _take(self, begin: int) -> str:
        found = _WORD.match(self._text, begin)
        if found is None:
            self.at = begin
            raise self.complain("has a quote that does not end")
        self.at = found.end()
        return found[0]
