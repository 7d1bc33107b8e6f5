"""What ``places.toml`` may say of a place, checked key by key; the options of ``holdfast place add`` pass the same.

Nothing is guessed: an unknown key, a value of the wrong form, a kind that is not there yet are refused, each with the
line where it stands. What becomes part of a command line on the box (root, python) is of `SAFE_WORD` characters only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from holdfast.core.near import find_near
from holdfast.core.slurm.options import check_options
from holdfast.desk.toml import Node
from holdfast.model.errors import UsageError
from holdfast.model.place import LOCAL, PLACE_NAME, Place, Rent
from holdfast.model.profile import PROFILE_NAME
from holdfast.model.record import asdict
from holdfast.model.slurm import SLURM
from holdfast.transport.base import SAFE_WORD

from .rent import read_rent
from .values import PlaceValueError, read_text, show_value

KEYS = ("kind", "host", "port", "root", "python", "setup", "env_from", "slurm", "profile", "rent")
KINDS = ("ssh", "local", "slurm")
NOT_YET = ("kubernetes",)
ENVIRONMENTS = ("login", "none")
MOST_PLACES = 1000
MOST_SETUP = 32_000
"""Characters of the lines of ``setup``: they travel in the order of each job."""

_USER = r"[A-Za-z0-9_][A-Za-z0-9._+@-]*"
_ADDRESS = r"(?=[^:]*:[^:]*:)[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?"
"""One of IPv6: two colons at least, so that NAME:PORT is none."""
_HOST = re.compile(rf"(?:{_USER}@)?(?:[A-Za-z0-9_][A-Za-z0-9._-]*|{_ADDRESS})\Z")
_PORT_BEHIND = re.compile(r"[^:]+:(\d+)\Z")


def parse_places(tree: Node) -> dict[str, Place]:
    """The places of the whole file, in its order.

    Raises:
        UsageError: something in it is wrong; every problem is named with file, line and key.
    """
    assert isinstance(tree.value, dict)
    problems: list[str] = []
    places: dict[str, Place] = {}
    for name, node in list(tree.value.items())[:MOST_PLACES]:
        if not isinstance(node.value, dict):
            problems.append(f"{node.where}: {name}: belongs to no place; write it below [NAME]")
            continue
        place = _build(name, node.value, node.where, problems)
        if place is not None:
            places[name] = place
    if len(tree.value) > MOST_PLACES:
        problems.append(f"{tree.where}: more than {MOST_PLACES} places")
    if problems:
        raise UsageError("\n".join(problems), hint="mend it there; runs and places are not affected")
    return places


def build_place(name: str, stated: Mapping[str, Node], where: str) -> Place:
    """One place of these values.

    Raises:
        UsageError: the name or a value is wrong; every problem is named.
    """
    problems: list[str] = []
    place = _build(name, stated, where, problems)
    if place is None:
        raise UsageError("\n".join(problems))
    return place


def suggest_name(text: str) -> str:
    """A name for a place that is like `text`; empty where none is."""
    near = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")[:32].strip("-")
    return near if PLACE_NAME.match(near) and near != LOCAL else ""


def check_name(name: str) -> str:
    """Why `name` can be no place's name; empty when it can."""
    if name == LOCAL:
        return f"{LOCAL} is this machine, always; choose another name"
    if PLACE_NAME.match(name):
        return ""
    before = name.partition(":")[0]
    if ":" in name and PLACE_NAME.match(before):
        return f"{name[:80]!r} is no name for a place: {before} alone would be one"
    near = suggest_name(name)
    advice = f"; {near} would do" if near else ""
    return f"{name[:80]!r} is no name for a place: small letters, digits and dashes, at most 32{advice}"


def _build(name: str, stated: Mapping[str, Node], where: str, problems: list[str]) -> Place | None:
    before = len(problems)
    if wrong := check_name(name):
        problems.append(f"{where}: {wrong}")
    fields: dict[str, object] = {}
    for key, node in stated.items():
        # An option of the command line stands in no line, and says itself what it is.
        label = f"{node.where}: {name}.{key}" if node.line else node.where
        if key not in KEYS:
            problems.append(f"{label}: {_unknown_key(key)}")
            continue
        if key == "rent":
            fields[key] = read_rent(node, label, problems)
            continue
        try:
            fields[key] = _READERS[key](node)
        except PlaceValueError as error:
            problems.append(f"{label}: {error}")
    kind = fields.setdefault("kind", "ssh" if "host" in stated else "local")
    if kind == "ssh" and "host" not in stated:
        problems.append(f"{where}: {name}: a place of kind ssh needs host, what ssh takes: an alias or USER@NAME")
    if kind == SLURM and "port" in stated and "host" not in stated:
        problems.append(f"{where}: {name}: a port belongs to a host, and there is none: this machine is its login node")
    if kind != SLURM and "slurm" in stated:
        problems.append(f"{where}: {name}: options of sbatch are for places of kind slurm")
    if kind == "local" and (extra := [key for key in ("host", "port") if key in stated]):
        problems.append(f"{where}: {name}: a place of kind local is this machine and takes no {' or '.join(extra)}")
    return None if len(problems) > before else Place(name, **fields)  # type: ignore[arg-type] # each by its own reader


def _unknown_key(key: str) -> str:
    near = find_near(key, KEYS)
    return f"unknown key; did you mean {near}?" if near else f"unknown key; there are {', '.join(KEYS)}"


def _read_choice(choices: tuple[str, ...]) -> Callable[[Node], str]:
    def read(node: Node) -> str:
        text = read_text(node)
        if text in choices:
            return text
        if text in NOT_YET and "ssh" in choices:
            raise PlaceValueError(f"places of kind {text} are not there yet; there are {', '.join(choices)}")
        near = find_near(text, choices)
        raise PlaceValueError(
            f"{text[:80]!r} is none of {', '.join(choices)}" + (f"; did you mean {near}?" if near else "")
        )

    return read


def _read_host(node: Node) -> str:
    text = read_text(node)
    if _HOST.match(text):
        return text
    if behind := _PORT_BEHIND.match(text):
        raise PlaceValueError(
            f"{text[:80]!r}: ssh takes the port apart from the host: {text[: -len(behind[1]) - 1][:80]}, and "
            f"{'port = ' if node.line else '--port '}{behind[1]}"
        )
    raise PlaceValueError(f"{text[:80]!r} is not what ssh takes: an alias, NAME or USER@NAME of letters, digits, . _ -")


def _read_port(node: Node) -> int:
    value = node.value
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65535:
        raise PlaceValueError(f"expected a port from 1 to 65535, found {show_value(node)}")
    return value


def _read_path(node: Node) -> str:
    text = read_text(node)
    rest = text.removeprefix("~/")
    if not SAFE_WORD.match(rest):
        raise PlaceValueError(f"{text[:80]!r} may have letters, digits and . _ / + = @ : - only")
    if ".." in rest.split("/"):
        raise PlaceValueError(f"{text[:80]!r}: write it without ..")
    path = text.rstrip("/") or "/"
    if not path.startswith(("/", "~/")):
        raise PlaceValueError(f"{path[:80]!r} is neither absolute nor below the home there (~/...)")
    return path


def _read_setup(node: Node) -> tuple[str, ...]:
    items = node.value if isinstance(node.value, list) else [node]
    lines = tuple(line for item in items for line in read_text(item).splitlines() if line.strip())
    if sum(map(len, lines)) > MOST_SETUP:
        raise PlaceValueError(f"more than {MOST_SETUP} characters; put them into a file there and source it")
    if any("\0" in line for line in lines):
        raise PlaceValueError("a zero byte is no part of a line of sh")
    return lines


def _read_slurm(node: Node) -> dict[str, str]:
    if not isinstance(node.value, dict):
        raise PlaceValueError(f"expected a table of sbatch's options, found {show_value(node)}")
    stated = {name: _read_option(value) for name, value in node.value.items()}
    try:
        return check_options(stated)
    except UsageError as error:
        raise PlaceValueError(f"{error}; {error.hint}" if error.hint else str(error)) from error


def _read_profile(node: Node) -> str:
    text = read_text(node)
    if PROFILE_NAME.fullmatch(text):
        return text
    raise PlaceValueError(f"{text[:80]!r} is no name of a profile; `holdfast profile ls` lists them")


def _read_option(node: Node) -> str:
    if node.value is True:
        return ""
    if isinstance(node.value, (dict, list, bool)) or node.value is None:
        raise PlaceValueError(f"expected text, a number or true, found {show_value(node)}")
    return str(node.value)


_READERS: dict[str, Callable[[Node], object]] = {
    "kind": _read_choice(KINDS),
    "host": _read_host,
    "port": _read_port,
    "root": _read_path,
    "python": _read_path,
    "setup": _read_setup,
    "env_from": _read_choice(ENVIRONMENTS),
    "slurm": _read_slurm,
    "profile": _read_profile,
}


def find_differences(before: Place, after: Place) -> list[str]:
    """What is configured otherwise in two places of one name, in words."""
    words = []
    for key in KEYS:
        old, new = getattr(before, key), getattr(after, key)
        if old != new:
            words.append(f"{key} {_say(old)} -> {_say(new)}")
    return words


def _say(value: object) -> str:
    if value in (None, (), {}, ""):
        return "unset"
    if isinstance(value, Rent):
        return ", ".join(f"{key}={_say(item)}" for key, item in asdict(value).items() if item not in (None, (), ""))
    if isinstance(value, dict):
        return ", ".join(f"{name}={text}" for name, text in value.items())
    return " / ".join(value) if isinstance(value, tuple) else str(value)
