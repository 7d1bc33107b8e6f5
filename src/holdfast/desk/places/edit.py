"""Tables of ``places.toml`` as text: one is appended, one is taken out, and all else stays to the letter.

What a change comes to is proven by reading both texts: they must differ in this place alone, else it is refused.
"""

from __future__ import annotations

from itertools import pairwise

from holdfast.desk.settings.toml_edit import write_value
from holdfast.desk.toml import find_headers, load_plain
from holdfast.model.errors import UsageError
from holdfast.model.place import LOCAL, Place, Rent
from holdfast.model.record import asdict


def add_table(text: str, place: Place) -> str:
    """The text with a table for `place` at its end.

    Raises:
        UsageError: the end of the file takes no table.
    """
    end = "\r\n" if "\r\n" in text else "\n"
    before = text if not text or text.endswith("\n") else text + end
    made = before + (end if before.strip() else "") + end.join([f"[{place.name}]", *_lines(place), ""])
    expected = {**load_plain(text), place.name: _values(place)}
    if _load(made) != expected:
        raise UsageError(f"no table can be put behind the end of the file for {place.name}", hint="add it by hand")
    return made


def remove_table(text: str, name: str, path: str) -> str:
    """The text without the tables of the place `name`; comments outside of them stay.

    Raises:
        UsageError: it is not written as a table of its own, so that a person has to take it out.
    """
    lines = text.splitlines(keepends=True)
    headers = [*find_headers(text), (len(lines), ())]
    kept, position, first = [], 0, 0
    for (start, key), (following, _) in pairwise(headers):
        if key[:1] != (name,):
            continue
        first = first or start + 1
        end = following
        # Comments above the next table speak of that one.
        while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
            end -= 1
        kept += lines[position:start]
        position = end
        if not kept or not kept[-1].strip():
            while position < len(lines) and not lines[position].strip():
                position += 1
    made = "".join([*kept, *lines[position:]])
    expected = {key: value for key, value in load_plain(text).items() if key != name}
    if _load(made) != expected:
        where = f"{path}:{first}" if first else path
        raise UsageError(
            f"{where}: {name} is not written as a table of its own", hint="take it out of the file by hand"
        )
    return made


def _load(text: str) -> dict[str, object] | None:
    try:
        return load_plain(text)
    except ValueError:
        return None


def _values(place: Place) -> dict[str, object]:
    """What is said of it in the file: what differs from the default."""
    usual = "ssh" if place.host is not None else LOCAL
    stated: dict[str, object] = {
        "kind": place.kind if place.kind != usual else None,
        "host": place.host,
        "port": place.port,
        "root": place.root,
        "python": place.python,
        "setup": list(place.setup) or None,
        "env_from": place.env_from if place.env_from != "none" else None,
        "slurm": dict(place.slurm) or None,
        "profile": place.profile or None,
        "rent": _rent_values(place.rent) or None,
    }
    return {key: value for key, value in stated.items() if value is not None}


def _rent_values(rent: Rent | None) -> dict[str, object]:
    """What is said of a rent: what differs from the default, tuples as lists."""
    stated = {} if rent is None else asdict(rent)
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in stated.items()}
    return {key: value for key, value in plain.items() if value not in (None, [], "")}


def _lines(place: Place) -> list[str]:
    return [f"{key} = {write_value(value)}" for key, value in _values(place).items()]
