r"""A user's own rules about the words of a log (FAIL-15): read strictly, held to their own examples on loading.

The file is the strict TOML subset of `core.rules.text`, one section for each rule::

    [licence]
    pattern = '^LicenceError: no seat for (?P<feature>\w+)'
    class = "transient"
    remedy = "wait for a seat, then: holdfast restart"
    example = "LicenceError: no seat for solver"
    near_miss = "LicenceError is handled"

A rule that does not keep its own examples is refused with its line: a rule that never matches is worse than none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from holdfast.core.rules.text import Pairs, RulesError, parse_pairs
from holdfast.diagnosis.evidence import LineRole, Reading
from holdfast.host.files.rules_file import read_trusted
from holdfast.model.errors import StorageError
from holdfast.model.verdict import FailureClass

from .bounds import WIDEST, check_expression, literal_begin
from .pattern import Pattern, check_pattern

VARIABLE = "HOLDFAST_FAILURE_RULES"
MOST_RULES = 64
SHORTEST_WORDS = 3
_KEYS = ("pattern", "class", "remedy", "example", "near_miss", "contains", "role")
_REQUIRED = ("pattern", "class", "remedy", "example", "near_miss")
_CLASSES = {kind.value: kind for kind in FailureClass if kind is not FailureClass.UNKNOWN}


def rules_path(environ: Mapping[str, str]) -> str:
    """Where the file of a user's rules is looked for; empty when the environment names no home either."""
    named = environ.get(VARIABLE, "")
    if named:
        return named
    home = environ.get("HOME", "")
    base = environ.get("XDG_CONFIG_HOME", "") or (f"{home}/.config" if home else "")
    return f"{base}/holdfast/failures.toml" if base.startswith("/") else ""


def load_rules(environ: Mapping[str, str]) -> tuple[Pattern, ...]:
    """The user's rules; none without a file.

    Raises:
        StorageError: the file exists and cannot be read, is not trustworthy, or a rule in it is refused; so does a
            file that `HOLDFAST_FAILURE_RULES` names and that does not exist.
    """
    path = rules_path(environ)
    text = read_trusted(path, "failure rules", {0, os.geteuid()}) if path else None
    if text is None and path and environ.get(VARIABLE):
        raise StorageError(f"failure rules {path} does not exist", hint=f"correct {VARIABLE} or unset it")
    if text is None:
        return ()
    try:
        return parse_failure_rules(text, path)
    except RulesError as error:
        raise StorageError(
            f"failure rules {error}", hint="correct that line; holdfast's docs/failure-rules.md explains the file"
        ) from error


def read_rules(environ: Mapping[str, str]) -> Reading[tuple[Pattern, ...]]:
    """As `load_rules`, for a diagnosis that must go on without: what is wrong with the file is the reading's reason."""
    try:
        return Reading(load_rules(environ))
    except StorageError as error:
        return Reading(unread=str(error))


def parse_failure_rules(text: str, source: str) -> tuple[Pattern, ...]:
    """The rules in a file's text.

    Raises:
        RulesError: a line is malformed, a key unknown or missing, or a rule does not keep its examples.
    """
    sections: dict[str, Pairs] = {}
    for key, (value, where) in parse_pairs(text, source).items():
        name, dot, field = key.partition(".")
        if not dot or field not in _KEYS:
            raise RulesError(f"{where}: unknown key {key!r}; a rule is [name] with {', '.join(_KEYS)}")
        sections.setdefault(name, {})[field] = (value, where)
    if len(sections) > MOST_RULES:
        raise RulesError(f"{source}: {len(sections)} rules; at most {MOST_RULES} are read")
    return tuple(_make_rule(name, pairs) for name, pairs in sections.items())


def _make_rule(name: str, pairs: Pairs) -> Pattern:
    where = next(iter(pairs.values()))[1]
    missing = [key for key in _REQUIRED if key not in pairs]
    if missing:
        raise RulesError(f"{where}: rule {name!r} has no {missing[0]}")
    kind = _CLASSES.get(_text(name, pairs, "class"))
    if kind is None:
        raise RulesError(f"{pairs['class'][1]}: rule {name!r}: class is none of {', '.join(_CLASSES)}")
    expression = _text(name, pairs, "pattern")
    refused = check_expression(expression)
    if refused:
        raise RulesError(f"{pairs['pattern'][1]}: rule {name!r}: the pattern {refused}")
    examples, near_misses = _texts(name, pairs, "example"), _texts(name, pairs, "near_miss")
    if any(len(line) > WIDEST for line in (*examples, *near_misses)):
        raise RulesError(f"{where}: rule {name!r}: an example is longer than {WIDEST} characters")
    rule = Pattern(
        f"user.{name}",
        _role(name, pairs),
        kind,
        _triggers(name, pairs, expression),
        expression,
        examples,
        near_misses,
        where,
        _text(name, pairs, "remedy"),
        widest=WIDEST,
    )
    problem = check_pattern(rule)
    if problem:
        key = "near_miss" if "near miss" in problem else "example"
        raise RulesError(f"{pairs[key][1]}: rule {name!r}: {problem}")
    return rule


def _role(name: str, pairs: Pairs) -> LineRole:
    if "role" not in pairs:
        return LineRole.ROOT
    try:
        return LineRole(_text(name, pairs, "role"))
    except ValueError as error:
        known = ", ".join(role.value for role in LineRole)
        raise RulesError(f"{pairs['role'][1]}: rule {name!r}: role is none of {known}") from error


def _triggers(name: str, pairs: Pairs, expression: str) -> tuple[str, ...]:
    """The words that stand in each line of the rule: stated, or what the pattern begins with."""
    stated = _texts(name, pairs, "contains") if "contains" in pairs else ()
    words = stated or (literal_begin(expression),)
    if any(len(re.sub("[^A-Za-z]", "", word)) < SHORTEST_WORDS for word in words):
        where = pairs["contains" if stated else "pattern"][1]
        raise RulesError(
            f"{where}: rule {name!r}: state `contains`, plain words of {SHORTEST_WORDS} letters or more that stand in "
            "every line it is about; only such lines are held against the pattern"
        )
    return words


def _text(name: str, pairs: Pairs, key: str) -> str:
    value, where = pairs[key]
    if not isinstance(value, str) or not value.strip():
        raise RulesError(f"{where}: rule {name!r}: {key} is a text in quotes, found {value!r}")
    return value


def _texts(name: str, pairs: Pairs, key: str) -> tuple[str, ...]:
    value, where = pairs[key]
    items = value if isinstance(value, list) else [value]
    if not items or not all(isinstance(item, str) and item.strip() for item in items):
        raise RulesError(f"{where}: rule {name!r}: {key} is a text in quotes or a list of them, found {value!r}")
    return tuple(items)
