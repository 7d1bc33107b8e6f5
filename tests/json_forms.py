"""A JSON value held against docs/json-schema.json, as far as that schema goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA: dict[str, Any] = json.loads((Path(__file__).parents[1] / "docs" / "json-schema.json").read_text())
TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "object": dict,
    "array": list,
}


def find_faults(verb: str, value: dict[str, Any]) -> list[str]:
    """What of a verb's object is not as the schema has it; empty when it is one of the verb's records."""
    assert value["schema"] >= 1
    found = [_check(SCHEMA["$defs"][name.rpartition("/")[2]], value, verb) for name in SCHEMA["verbs"][verb]]
    return min(found, key=len)


def find_output_faults(arguments: Sequence[str], value: dict[str, Any]) -> list[str]:
    """What of the output of a command line is not as the schema has it, whichever of its verb's records it is."""
    if "error" in value:
        return []
    words = [word for word in arguments if not word.startswith("-")]
    bases = {verb: verb.partition(" -")[0] for verb in SCHEMA["verbs"]}
    asked = next((name for name in (" ".join(words[:2]), words[0]) if name in bases.values()), None)
    verbs = [verb for verb, base in bases.items() if (base == asked if asked else base.startswith(f"{words[0]} "))]
    assert verbs, f"no verb of the schema is {' '.join(arguments)}"
    return min((find_faults(verb, value) for verb in verbs), key=len)


def _check(form: dict[str, Any], value: Any, where: str) -> list[str]:
    if "$ref" in form:
        return _check(SCHEMA["$defs"][form["$ref"].rpartition("/")[2]], value, where)
    if "anyOf" in form:
        return min((_check(one, value, where) for one in form["anyOf"]), key=len)
    if "enum" in form and value not in form["enum"]:
        return [f"{where}: {value!r} is none of {form['enum']}"]
    kind = form.get("type")
    if kind is not None and (not isinstance(value, TYPES[kind]) or (kind in ("integer", "number") and value is True)):
        return [f"{where}: {value!r:.80} is no {kind}"]
    faults = []
    if isinstance(value, dict) and "properties" in form:
        known = form["properties"]
        faults += [f"{where}: there is no {name!r}" for name in known if name not in value]
        faults += [
            f"{where}: {name!r} is not in the schema" for name in value if name not in {*known, "schema", "kind"}
        ]
        for name in known:
            if name in value:
                faults += _check(known[name], value[name], f"{where}.{name}")
    if isinstance(value, list) and form.get("items"):
        for number, item in enumerate(value):
            faults += _check(form["items"], item, f"{where}[{number}]")
    return faults
