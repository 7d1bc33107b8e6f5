"""Which verbs the schema of ``--json`` covers."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.desk.orders.enqueue import TakenThere
from holdfast.model.record import record
from tests.desk.route.test_table import TREE
from tests.json_forms import SCHEMA

pytestmark = pytest.mark.files

PATH = Path(__file__).parents[2] / "scripts" / "json_records.py"


@pytest.fixture(name="records")
def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("json_records", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_verb_with_json_has_its_object_in_the_schema_or_is_named_as_having_none(records: Any) -> None:
    covered = {name.partition(" -")[0] for name in SCHEMA["verbs"]}
    verbs = {name for name, verb in TREE.items() if any("--json" in one.opts for one in verb.params)}
    assert verbs - covered - set(records.OPEN) == set()
    assert covered | set(records.OPEN) <= verbs


def test_two_records_of_one_name_are_refused_not_mixed(records: Any) -> None:
    other: type = record(type("TakenThere", (), {"__annotations__": {"a": "int"}, "__module__": __name__}))
    with pytest.raises(SystemExit, match="both have a record TakenThere in the schema: rename one"):
        records.name_definitions({TakenThere: {}, other: {}})


def test_an_inherited_field_means_what_it_means_where_it_is_declared(records: Any) -> None:
    definitions: dict[type, Any] = {}
    records.refer(TakenThere, definitions)
    jobs = definitions[TakenThere]["properties"]["jobs"]
    assert jobs == {"type": "array", "items": {"$ref": "#/$defs/TakenJob"}}


def test_what_a_verb_prints_for_programs_is_a_record_or_an_error() -> None:
    source = PATH.parents[1] / "src" / "holdfast" / "cli"
    call = re.compile(r"\bprint_json\(")
    by_hand = {str(path.relative_to(source)) for path in source.rglob("*.py") if call.search(path.read_text())}
    assert by_hand == {"render/__init__.py", "errors.py", "placed/wait.py"}
