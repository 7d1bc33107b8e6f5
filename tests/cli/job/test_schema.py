"""The key table: complete, worded truthfully, and the JSON Schema that is made from it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.cli.job.documents import Node, parse_yaml
from holdfast.cli.job.jobfile import read_job
from holdfast.cli.job.schema import BY_PATH, GROUPS, KEYS, Key, Kind, build_json_schema
from holdfast.cli.job.values import WrongValueError, convert_value
from holdfast.model.job import JobSpec
from holdfast.model.record import fields
from tests.cli.job.test_jobfile import EVERYTHING_YAML
from tests.each import each

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli

NO_DEFAULT_IN_THE_MODEL = {"name", "workdir", "command"}
WORDS_FOR_ABSENCE = {"no limit", "not stated", "none", "nothing", "unchanged", "all", "auto"}


def field_of(spec: JobSpec, path: str) -> Any:
    value: Any = spec
    for part in path.split("."):
        value = getattr(value, part)
    return value


def leaf_fields(cls: type, prefix: str = "") -> set[str]:
    found = set()
    for field in fields(cls):
        if field.name in {
            "gpu",
            "timeouts",
            "limits",
            "disk",
            "checkpoints",
            "notify",
            "channels",
            "stall",
            "retries",
            "results",
            "container",
        }:
            found |= leaf_fields(type(field.default), f"{field.name}.")
        else:
            found.add(prefix + field.name)
    return found


def test_every_field_of_a_job_has_exactly_one_key_and_one_option() -> None:
    assert sorted(key.field for key in KEYS) == sorted(leaf_fields(JobSpec))
    options = [key.option for key in KEYS if key.option]
    assert len(options) == len(set(options)) == len(KEYS) - 1
    assert len(BY_PATH) == len(KEYS)


@each("key", KEYS, ids=lambda key: key.path)
def test_the_default_in_words_is_the_default_in_fact(key: Key) -> None:
    plain = JobSpec("x", ("x",), "/")
    if key.path in NO_DEFAULT_IN_THE_MODEL:
        return
    default = field_of(plain, key.field)
    if key.default in WORDS_FOR_ABSENCE and key.kind is not Kind.CHOICE:
        assert default is None or len(default) == 0
        return
    if default is None:
        assert key.absent
        return
    (node,) = parse_yaml(f"a: {key.default}\n", "x").value.values()  # type: ignore[union-attr]
    value = convert_value(key, node, "/")
    assert value == default


@each("key", KEYS, ids=lambda key: key.path)
def test_no_value_of_any_type_breaks_a_reader(key: Key) -> None:
    items: list[Any] = [None, True, -1, 0, 10**30, 1.5, float("nan"), "", "x", "\0", "none", "auto", "9" * 5000]
    nodes = [Node(item, "job.yaml:1", 1, str(item)) for item in items]
    nodes += [Node([node], "job.yaml:1", 1) for node in nodes] + [Node({"a": nodes[0]}, "job.yaml:1", 1)]
    nodes.append(Node([], "job.yaml:1", 1))
    if key.kind is Kind.ENV:
        return
    for node in nodes:
        # None would be a value that no field can tell from "not stated".
        assert outcome(key, node) is not None


def outcome(key: Key, node: Node) -> object:
    try:
        return convert_value(key, node, "/base")
    except WrongValueError as error:
        assert_one_line(str(error))
        return error


def assert_one_line(text: str) -> None:
    assert text
    assert "\n" not in text


def accepts(schema: Any, value: Any) -> bool:
    """A small JSON Schema validator: just the words that our schema uses, and an error for any other."""
    known = {"type", "enum", "anyOf", "pattern", "minimum", "maximum", "minLength", "minItems", "uniqueItems", "items",
             "properties", "additionalProperties", "required", "description", "$schema", "$id", "title"}  # fmt: skip
    assert set(schema) <= known, set(schema) - known
    types: dict[str, Any] = {"string": str, "object": dict, "array": list, "boolean": bool, "integer": int,
                             "number": (int, float)}  # fmt: skip
    if "type" in schema:
        names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        if not any(isinstance(value, types[name]) and (name == "boolean") == isinstance(value, bool) for name in names):
            return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "anyOf" in schema and not any(accepts(form, value) for form in schema["anyOf"]):
        return False
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            return False
        return len(value) >= int(schema.get("minLength", 0))
    if isinstance(value, list):
        fits = all(accepts(schema.get("items", {}), item) for item in value)
        return fits and len(value) >= int(schema.get("minItems", 0))
    if isinstance(value, dict):
        inside, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        if not set(schema.get("required", [])) <= set(value) or (others is False and set(value) - set(inside)):
            return False
        return all(accepts(inside.get(name, others), item) for name, item in value.items())
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        return bool(low <= value <= high)
    return True


def plain(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {key: plain(inner) for key, inner in node.value.items()}
    return [plain(inner) for inner in node.value] if isinstance(node.value, list) else node.value


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (EVERYTHING_YAML, True),
        ("command: x", True),
        ("command: [x]\ngpus: [0, 1]\ntimeout: ~\ngrace: auto\nlimits: {affinity: [1]}\ndata: /x", True),
        ("name: x", False),
        ("command: x\nwat: 1", False),
        ("command: x\ngpu: {min_fee: 1GB}", False),
        ("command: x\ntimeout: 4x", False),
        ("command: x\ntimeout: -1", False),
        ("command: x\ngpu: {min_free: 1.5X}", False),
        ("command: x\npriority: highh", False),
        ("command: x\nname: a b", False),
        ("command: x\nenv: {A: yes}", False),
        ("command: x\nseed: '3'", False),
        ("command: []", False),
        ("command: x\ndisk: {keep: 0}", False),
    ],
)
def test_the_schema_and_the_reader_agree(text: str, fits: bool, tmp_path: Any) -> None:
    assert accepts(build_json_schema(), plain(parse_yaml(text, "job.yaml"))) is fits
    path = tmp_path / "job.yaml"
    path.write_text(text)
    if fits:
        assert read_job(str(path), {}).command
    else:
        with pytest.raises(Exception, match=r"job\.yaml"):
            read_job(str(path), {})


def test_schema_prints_it(holdfast: Command) -> None:
    import json

    ended = holdfast("schema")
    assert ended.code == 0
    assert json.loads(ended.out) == build_json_schema()
    assert set(json.loads(ended.out)["properties"]) == {key.path for key in GROUPS[""]} | set(GROUPS) - {""}
