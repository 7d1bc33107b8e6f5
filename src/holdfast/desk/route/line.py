"""A command line read by the table, as click would read it, without importing a verb.

Owned here: which words are options, values and arguments, and where ``--on PLACE`` was. Whether an option exists, or a
value is right, is the verb's business: a word that is not known is handed on, and refused by the verb.
"""

from __future__ import annotations

from holdfast.model.errors import UsageError
from holdfast.model.record import field, record

from .table import VERBS, Side, Verb

ON = "--on"
SHORT = {"sweep": "sweep submit", "checkpoints": "checkpoints ls"}
"""Groups that can be typed without a verb, and the one that is meant then."""
HELP = frozenset({"-h", "--help", "--help-all"})


@record
class Given:
    """A parameter as it was given: its name (of an option: as spelt) and where its text stands.

    The text is ``argv[index][begin:]``.
    """

    name: str
    side: Side
    index: int
    begin: int = 0


@record
class Line:
    """A command line. `argv` is without ``--on``, whose values are in `on`; `name` is None where no verb was found.

    `given` are arguments and values of options; a flag is nowhere but in `argv`. `own` is how many words of `argv`
    are holdfast's own: ``--`` of a job's command and what follows are not. `surplus` are arguments that
    it does not take.
    """

    argv: tuple[str, ...]
    on: tuple[str, ...]
    name: str | None
    verb: Verb | None
    given: tuple[Given, ...] = field(default_factory=tuple)
    own: int = 0
    asks_help: bool = False
    surplus: tuple[str, ...] = ()

    def text(self, given: Given) -> str:
        """What was given for a parameter."""
        return self.argv[given.index][given.begin :]

    def has(self, *flags: str) -> bool:
        """Whether one of these flags stands among holdfast's own words."""
        return any(word in flags for word in self.argv[: self.own])


def read_line(argv: list[str]) -> Line:
    """Read a command line without the program's name.

    Raises:
        UsageError: ``--on`` has no place behind it.
    """
    reader = _Reader(argv)
    reader.read()
    return reader.answer()


class _Reader:
    """Goes over the words once."""

    def __init__(self, argv: list[str]) -> None:
        self._todo = list(argv)
        self._done: list[str] = []
        self._on: list[str] = []
        self._given: list[Given] = []
        self._surplus: list[str] = []
        self._name = ""
        self._unknown = False
        self._arguments = 0
        self._own: int | None = None
        self._asks_help = False

    @property
    def _verb(self) -> Verb | None:
        return VERBS.get(self._name)

    def answer(self) -> Line:
        own = len(self._done) if self._own is None else self._own
        name = None if self._unknown or not self._name else self._name
        verb = None if name is None else VERBS[name]
        found = (tuple(self._given), own, self._asks_help, tuple(self._surplus))
        return Line(tuple(self._done), tuple(self._on), name, verb, *found)

    def read(self) -> None:
        while self._todo:
            if self._name in SHORT and self._has_no_verb(self._todo[0]):
                self._name = SHORT[self._name]
            word = self._todo.pop(0)
            if word == ON or word.startswith(f"{ON}="):
                self._take_on(word)
            elif word == "--":
                self._end_options()
                return
            elif word.startswith("-") and word != "-":
                self._take_option(word)
            else:
                self._take_word(word)

    def _has_no_verb(self, word: str) -> bool:
        """Whether a group is typed without a verb: ``sweep SOURCE`` is ``sweep submit SOURCE``."""
        named = f"{self._name} {word}" in VERBS or word in HELP
        return not named and word != ON and not word.startswith(f"{ON}=")

    def _take_on(self, word: str) -> None:
        if word == ON and not self._todo:
            raise UsageError("--on needs a place", hint="write --on PLACE; `holdfast place ls` lists them")
        place = word[len(ON) + 1 :] if word != ON else self._todo.pop(0)
        self._on.append(place)

    def _end_options(self) -> None:
        """Behind ``--`` there are arguments, or a job's command."""
        self._done.append("--")
        if self._verb is not None and self._verb.command:
            self._own = len(self._done) - 1
            self._done += self._todo
        else:
            for word in self._todo:
                self._take_word(word)
        self._todo = []

    def _take_option(self, word: str) -> None:
        self._asks_help = self._asks_help or word in HELP
        options = {} if self._verb is None else self._verb.options
        self._done.append(word)
        index = len(self._done) - 1
        if word in options:
            self._take_value(word, options[word])
        elif word.startswith("--"):
            name, equals, _ = word.partition("=")
            if equals and name in options:
                self._given.append(Given(name, options[name], index, len(name) + 1))
        else:
            self._take_letters(word, options)

    def _take_letters(self, word: str, options: dict[str, Side]) -> None:
        """Several short options in one word: ``-fn5``."""
        for at, letter in enumerate(word[1:], start=2):
            option = f"-{letter}"
            if option not in options:
                self._asks_help = self._asks_help or option in HELP
                continue
            if at < len(word):
                self._given.append(Given(option, options[option], len(self._done) - 1, at))
            else:
                self._take_value(option, options[option])
            return

    def _take_value(self, option: str, side: Side) -> None:
        if self._todo:
            self._done.append(self._todo.pop(0))
            self._given.append(Given(option, side, len(self._done) - 1))

    def _take_word(self, word: str) -> None:
        """A verb, a sub-verb, or an argument."""
        self._done.append(word)
        name = f"{self._name} {word}".strip()
        if not self._arguments and name in VERBS:
            self._name = name
            return
        verb = self._verb
        if verb is None:
            self._unknown = True
            return
        at = self._arguments
        self._arguments += 1
        if at >= len(verb.arguments) and not verb.many:
            self._surplus.append(word)
            return
        argument, side = verb.arguments[min(at, len(verb.arguments) - 1)]
        self._given.append(Given(argument, side, len(self._done) - 1))
