"""Files of profiles laid over each other, key by key, and the `Profile` that comes of it. Pure.

The order is: the baseline, each profile down the line of inheritance, and of each of them the package's file before the
user's. A later one stands over what came before, down to single keys of a tier, a verb or a clock; ``leaves_out`` takes
inherited tables away first (``verbs``, ``tiers.disk``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.model.profile import PLAIN_VARIABLES, VARIABLES, Clock, EndVerb, Fact, Profile, Tier
from holdfast.model.record import record

from .schema import NEEDED, PLAIN, SECTIONS, STAMP, TABLES, Problem, list_facts
from .survive import fill_in_home

_FIELDS = {"grace": "grace_s", "interruptions": "interruptions_s", "runtime_cap": "runtime_cap_s"}
_OF_LAYER = ("leaves_out", "inherits", *STAMP)


def find_field(key: str) -> str:
    """The field of `Profile` in which a statement of one value stands."""
    return _FIELDS.get(key, key)


@record
class Layer:
    """What one file says (`schema.check_file`), and the name under which it is shown as an origin."""

    origin: str
    stated: dict[str, object]


@record
class Merged:
    """All layers as one: values by key, origins and stamps by dotted key."""

    values: dict[str, Any]
    origins: dict[str, str]
    facts: dict[str, Fact]


def merge(layers: Iterable[Layer]) -> Merged:
    """The layers, each over those before it."""
    merged = Merged({}, {}, {})
    for layer in layers:
        left_out = layer.stated.get("leaves_out")
        for key in left_out if isinstance(left_out, tuple) else ():
            _leave_out(merged, key)
        _lay_over(merged, layer)
    return merged


def _leave_out(merged: Merged, key: str) -> None:
    table, _, name = key.partition(".")
    if table == "facts":
        for fact in [name] if name else merged.values.get(table, {}):
            merged.facts.pop(fact, None)
    if name:
        merged.values.get(table, {}).pop(name, None)
    else:
        merged.values.pop(table, None)
    for known in (merged.origins, merged.facts):
        for dotted in [dotted for dotted in known if f"{dotted}.".startswith(f"{key}.")]:
            del known[dotted]


def _lay_over(merged: Merged, layer: Layer) -> None:
    for key, value in layer.stated.items():
        if key in _OF_LAYER:
            continue
        if not isinstance(value, dict):
            merged.values[key] = value
            merged.origins[key] = layer.origin
            if value is None or value == "":
                # To be measured: what was known before does not count, nor does its stamp.
                merged.facts.pop(key, None)
            continue
        table = merged.values.setdefault(key, {})
        for name, inner in value.items():
            merged.origins[f"{key}.{name}"] = layer.origin
            if isinstance(inner, dict):
                _lay_table(merged, table.setdefault(name, {}), inner, f"{key}.{name}", layer.origin)
            else:
                table[name] = inner
    for path, inner in list_facts(layer.stated):
        stamp = {key: str(inner.get(key, layer.stated.get(key, ""))) for key in STAMP}
        named = path[1:] if path[0] == "facts" else path
        said = merged.values.get("facts", {}).get(named[0], {}) if len(named) == 1 else {}
        merged.facts[".".join(named)] = Fact(str(said.get("text") or ""), **stamp)


def _lay_table(merged: Merged, table: dict[str, Any], inner: Mapping[str, object], key: str, origin: str) -> None:
    for name, value in inner.items():
        if name in STAMP:
            continue
        if isinstance(value, dict):
            table[name] = {**table.get(name, {}), **value}
            merged.origins.update({f"{key}.{name}.{verb}": origin for verb in value})
        else:
            table[name] = value
            merged.origins[f"{key}.{name}"] = origin


def find_gaps(merged: Merged) -> list[Problem]:
    """What is missing or does not fit, when all files were laid over each other."""
    values = merged.values
    gaps = []
    for table, needed in NEEDED.items():
        for name, inner in values.get(table, {}).items():
            missing = [key for key in needed if key not in inner]
            if missing:
                gaps.append(Problem((table, name), f"has no {', '.join(missing)}"))
    verbs = values.get("verbs", {})
    there = f"the verbs are {', '.join(verbs) or 'none'}"
    for name, tier in values.get("tiers", {}).items():
        for key in ("survives", "bills_after"):
            gaps += [
                Problem(("tiers", name, key), f"{verb!r} is no verb of this profile; {there}")
                for verb in tier.get(key, ())
                if verb not in verbs
            ]
    if (stop := values.get("meter_stop")) and stop not in verbs:
        gaps.append(Problem(("meter_stop",), f"{stop!r} is no verb of this profile; {there}"))
    if values.get("metered") == "money" and not stop:
        gaps.append(Problem(("meter_stop",), "a profile with a meter says which of its verbs stops it"))
    gaps += [Problem((key,), "is not stated") for key in PLAIN if key not in values and key not in _OF_LAYER]
    missing = [name for name in SECTIONS if not values.get("sections", {}).get(name)]
    gaps += [Problem(("sections", name), "is empty; every profile says something of all eight") for name in missing]
    return gaps


def build_profile(name: str, inherits: str, merged: Merged) -> Profile:
    """The profile of merged files without gaps."""
    values = {key: value for key, value in merged.values.items() if key not in (*TABLES, "variables", "sections")}
    tables = merged.values
    known = {key: value for key, value in values.items() if value is not None}
    variables = tables.get("variables", {})
    home = values.get("home", "")
    return Profile(
        name=name,
        inherits=inherits,
        **{find_field(key): value for key, value in known.items()},
        tiers=tuple(
            Tier(
                tier,
                paths=tuple(fill_in_home(path, home) for path in inner["paths"]),
                cap_bytes=inner.get("cap"),
                **_without(inner, "paths", "cap"),
            )
            for tier, inner in tables.get("tiers", {}).items()
        ),
        verbs=tuple(
            EndVerb(verb, stops_meter=inner.get("stops_meter"), **_without(inner, "stops_meter"))
            for verb, inner in tables.get("verbs", {}).items()
        ),
        clocks=tuple(
            Clock(clock, after_s=inner["after"], **_without(inner, "after"))
            for clock, inner in tables.get("clocks", {}).items()
        ),
        variables={
            key: variables[key] if key in PLAIN_VARIABLES else fill_in_home(variables[key], home)
            for key in VARIABLES
            if key in variables
        },
        sections={key: tables["sections"][key] for key in SECTIONS},
        facts=dict(merged.facts),
        origins=dict(merged.origins),
    )


def _without(table: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name not in keys}
