"""What is written comes back; what is not understood is named with its place, and never half believed."""

from __future__ import annotations

import json
import math
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.run.events import RunPlan
from holdfast.model import finding, gpu, identity, job, lease, origin, run, wire
from holdfast.model.finding import Finding, Level
from holdfast.model.identity import BoxIdentity, ProcessId, WaitStatus
from holdfast.model.job import JobSpec
from holdfast.model.record import MISSING, fields, is_record, record, replace
from holdfast.model.run import (
    Ended,
    Outcome,
    Preflight,
    RequestKind,
    RunState,
    StopCause,
    Stopping,
    StopRecord,
    StopRequest,
)
from tests.each import each
from tests.strategies import values_of

pytestmark = pytest.mark.pure


def find_dataclasses() -> list[type]:
    found: list[type] = [RunPlan]
    for module in (finding, gpu, identity, job, lease, origin, run):
        found += [
            value
            for value in vars(module).values()
            if isinstance(value, type) and is_record(value) and value.__module__ == module.__name__
        ]
    return found


TYPES = find_dataclasses()
STATE = RunState(
    "20261120-104501-digits-3fa2",
    1,
    3,
    BoxIdentity("box", "machine", "boot", "pid:[1]"),
    "2026-11-20T10:45:01.000Z",
    None,
    Preflight("now"),
)


def test_every_type_is_found() -> None:
    assert {RunState, JobSpec, Stopping, Finding, WaitStatus} <= set(TYPES)


@given(st.data())
def test_every_type_comes_back_as_it_was(data: st.DataObject) -> None:
    cls = data.draw(st.sampled_from(TYPES))
    value = data.draw(values_of(cls))
    assert wire.from_bytes(cls, wire.to_bytes(value), "x.json") == value


@given(st.data())
def test_unknown_fields_of_a_newer_holdfast_are_ignored(data: st.DataObject) -> None:
    cls = data.draw(st.sampled_from(TYPES))
    value = data.draw(values_of(cls))
    stored = json.loads(wire.to_bytes(value))
    assert wire.decode(cls, add_unknown_fields(value, stored)) == value


def add_unknown_fields(value: Any, stored: Any) -> Any:
    """The stored form of a value, with a field more in every record of it: a map of texts is no record."""
    if is_record(value):
        known = {key: add_unknown_fields(getattr(value, key, None), item) for key, item in stored.items()}
        return {**known, "from_the_future": [1, {"deep": None}]}
    if isinstance(value, dict):
        return {key: add_unknown_fields(item, stored[key]) for key, item in value.items()}
    if isinstance(value, tuple):
        return [add_unknown_fields(*pair) for pair in zip(value, stored, strict=True)]
    return stored


@given(st.data())
def test_absent_fields_have_their_default_or_are_named(data: st.DataObject) -> None:
    cls = data.draw(st.sampled_from(TYPES))
    value = data.draw(values_of(cls))
    field = data.draw(st.sampled_from(fields(cls))) if fields(cls) else None
    if field is None:
        return
    stored = wire.encode(value)
    del stored[field.name]
    if field.default is MISSING and field.default_factory is MISSING:
        with pytest.raises(wire.WireError, match=f"x.json: {field.name} is missing"):
            wire.decode(cls, stored, "x.json")
        return
    default = field.default if field.default is not MISSING else field.default_factory()
    assert wire.decode(cls, stored) == replace(value, **{field.name: default})


KEYS = st.text(max_size=5) | st.just("kind")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_anything_else_is_a_wire_error_and_nothing_worse(data: st.DataObject) -> None:
    cls = data.draw(st.sampled_from(TYPES))
    stored = wire.encode(data.draw(values_of(cls)))
    if stored.keys() - {"kind"}:
        stored[data.draw(st.sampled_from(sorted(stored)))] = data.draw(JSON)
    try:
        wire.decode(cls, stored)
    except wire.WireError as error:
        assert str(error).startswith(cls.__name__)  # noqa: PT017 - both answers are right, one is checked


@given(st.binary(max_size=64))
def test_garbage_is_a_wire_error(data: bytes) -> None:
    with pytest.raises(wire.WireError, match=r"^state\.json"):
        wire.from_bytes(RunState, data, "state.json")


@each(
    ("where", "value", "words"),
    [
        ("attempt", "1", r"state\.json\.attempt: expected int, found '1'"),
        ("attempt", True, r"state\.json\.attempt: expected int, found True"),
        ("version", 1.5, r"state\.json\.version: expected int, found 1\.5"),
        ("run_id", None, r"state\.json\.run_id: expected str, found None"),
        ("supervisor", 7, r"state\.json\.supervisor: expected an object, found 7"),
        ("supervisor", {"pid": 1}, r"state\.json\.supervisor: start_ticks is missing"),
        ("supervisor", {"kind": "ended"}, r"state\.json\.supervisor: pid is missing"),
        ("state", {"kind": "asleep"}, r"state\.json\.state: unknown kind 'asleep'"),
        ("state", {"kind": ["ended"]}, r"state\.json\.state: unknown kind \['ended'\]"),
        ("state", {"kind": "preflight"}, r"state\.json\.state: since is missing"),
        ("state", {"kind": "waiting", "since": "x", "blocked_by": 3}, r"\.blocked_by: expected an array, found 3"),
        ("state", {"kind": "waiting", "since": "x", "blocked_by": [3]}, r"\.blocked_by\[0\]: expected an object"),
    ],
)
def test_a_wrong_form_is_named_with_its_place(where: str, value: object, words: str) -> None:
    stored = {**wire.encode(STATE), where: value}
    with pytest.raises(wire.WireError, match=words):
        wire.decode(RunState, stored, "state.json")


@each(
    ("cls", "value", "words"),
    [
        (Level, "perfect", "'perfect' is none of pass, unknown, warn, fail"),
        (Level, ["pass"], r"\['pass'\] is none of"),
        (gpu.CardChoice, {"rejected": [["GPU-1"]]}, r"rejected\[0\]: expected 2 items, found 1"),
        (JobSpec, {"name": "x", "command": ["x"], "workdir": "/", "env": []}, r"env: expected an object, found \[\]"),
        (JobSpec, {"name": "x", "command": ["x"], "workdir": "/", "env": {"A": 1}}, r"env\.A: expected str, found 1"),
        (RunPlan, {"preflight_s": "soon"}, r"preflight_s: expected float, found 'soon'"),
        (RunPlan, {"preflight_s": True}, r"preflight_s: expected float, found True"),
        (RunPlan, {"preflight_s": 10**400}, r"preflight_s: 1000.* is too large a number"),
    ],
)
def test_wrong_values(cls: type, value: object, words: str) -> None:
    with pytest.raises(wire.WireError, match=words):
        wire.decode(cls, value)


def test_a_whole_number_is_a_float_too() -> None:
    plan = wire.decode(RunPlan, {"preflight_s": 3})
    assert (plan.preflight_s, type(plan.preflight_s)) == (3.0, float)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"[1]", "holds list, not a JSON object"),
        (b"null", "holds NoneType, not a JSON object"),
        (b"\xff\xfe\xff", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
    ],
)
def test_what_is_no_json_object(data: bytes, words: str) -> None:
    with pytest.raises(wire.WireError, match=words):
        wire.parse_object(data, "exit.json")


def test_the_file_says_its_schema_first_and_ends_with_a_newline() -> None:
    data = wire.to_bytes(STATE, reason="start")
    assert data.startswith(b'{\n "schema": 1,\n "reason": "start",\n')
    assert data.endswith(b"}\n")


def test_a_name_that_is_no_utf_8_is_stored_and_comes_back() -> None:
    """os.fsdecode makes lone surrogates of such bytes; plain UTF-8 output would raise on them."""
    name = b"/data/\xff\xe9t\xe9".decode("utf-8", "surrogateescape")
    spec = JobSpec(name="x", command=(name,), workdir="/")
    assert wire.from_bytes(JobSpec, wire.to_bytes(spec), "run.json") == spec


def test_mappings_lists_and_plain_values_are_encoded_as_they_are() -> None:
    value = {"findings": [Finding("disk.bytes", Level.WARN, "/", "1 GB")], 3: (RequestKind.STOP, None, 1.5)}
    assert wire.encode(value) == {
        "findings": [{"id": "disk.bytes", "level": "warn", "subject": "/", "evidence": "1 GB", "remedy": ""}],
        "3": ["stop", None, 1.5],
    }


def test_the_lifecycle_union_carries_its_kind() -> None:
    assert {wire.encode(Preflight("x"))["kind"], wire.encode(run.Created())["kind"]} == {"preflight", "created"}
    ended = Ended("x", Outcome.LOST, 71, "why", request=StopRequest(StopCause.SIGNAL, "TERM"))
    stored = wire.encode(replace(STATE, state=ended))
    assert stored["state"]["kind"] == "ended"
    assert "kind" not in stored["state"]["request"]


def test_every_state_has_a_kind_of_its_own() -> None:
    assert len({cls.__name__.lower() for cls in run.STATES}) == len(run.STATES)


def test_every_enum_is_made_of_text() -> None:
    enums = [v for m in (finding, gpu, job, lease, run) for v in vars(m).values() if isinstance(v, type)]
    assert all(
        isinstance(item.value, str) for cls in enums if issubclass(cls, Enum) and cls is not Enum for item in cls
    )


def test_an_older_record_without_the_newer_fields_is_read() -> None:
    process = wire.encode(ProcessId(5, 6, "b"))
    job_process = {"process": process, "sid": 5, "pgid": 5, "inner_pid": 2}
    running = {"kind": "running", "since": "x", "devices": [], "keeper": process, "job": job_process}
    found = wire.decode(RunState, {**wire.encode(STATE), "state": running})
    assert isinstance(found.state, run.Running)
    assert (found.state.began, found.state.held_from) == (None, None)


@record
class Loose:
    """Forms of annotation that the model may use and does not yet."""

    anything: object
    either: int | str | None


@each("anything", [None, 3, [1, {"a": 2}]])
@each("either", [1, "one", None])
def test_objects_and_plain_unions(anything: object, either: int | str | None) -> None:
    value = Loose(anything, either)
    assert wire.decode(Loose, wire.encode(value)) == value


def test_none_of_a_union() -> None:
    with pytest.raises(wire.WireError, match=r"Loose\.either: expected str, found 1\.5"):
        wire.decode(Loose, {"anything": 1, "either": 1.5})


def test_the_directory_of_an_attempt() -> None:
    assert wire.attempt_dir("/runs/x", 3) == "/runs/x/attempts/3"


@pytest.mark.requirement("LIB-18")
def test_a_stop_record_is_taken_as_far_as_it_is_sane() -> None:
    sane = {"schema": 1, "why": "signal", "detail": "SIGTERM", "step": 12, "checkpoint_step": 12, "saved": True}
    found = wire.clean_stop({**sane, "seconds": 2, "at": "2026-11-20T10:00:00.000Z", "traceback": "a\n\tb\n"})
    expected = StopRecord("signal", "SIGTERM", 12, 12, saved=True, seconds=2.0, at="2026-11-20T10:00:00.000Z")
    assert found == replace(expected, traceback="a\n\tb\n")


@pytest.mark.parametrize("why", [None, 3, "", " \x07 ", ["signal"], {}])
def test_a_stop_record_that_does_not_say_why_says_nothing(why: object) -> None:
    assert wire.clean_stop({"why": why, "saved": True}) is None


def test_absurd_values_of_a_stop_record_are_left_out() -> None:
    absurd = {
        "why": "x" * 5000,
        "detail": "red \x1b[31m\ud800\n" + "y" * 5000,
        "step": True,
        "checkpoint_step": 10**40,
        "saved": "yes",
        "seconds": math.inf,
        "at": 7,
        "traceback": "\x1b]0;owned\x07" + "z" * 100_000,
    }
    found = wire.clean_stop(absurd)
    assert found is not None
    assert (found.step, found.checkpoint_step, found.saved, found.seconds, found.at) == (None, None, False, None, "")
    assert len(found.why) == wire.LONGEST_WHY
    assert len(found.detail) <= wire.LONGEST_HEARTBEAT_TEXT
    assert found.detail.startswith("red  [31m")
    assert found.traceback == "z" * wire.LONGEST_TRACEBACK
    assert wire.to_bytes(found)
    assert wire.clean_stop({"why": "signal", "seconds": math.nan, "step": -1}) == StopRecord("signal")


@given(st.dictionaries(st.text(max_size=8), st.recursive(st.integers() | st.text(max_size=60), st.lists, max_leaves=9)))
def test_a_file_is_what_was_put_in_whatever_its_layout(values: dict[str, object]) -> None:
    read = json.loads(wire.to_bytes({"part": values, "long": {**values, "more": "x" * 200}}))
    assert read == {"schema": run.SCHEMA, "part": values, "long": {**values, "more": "x" * 200}}


def test_a_file_has_a_line_for_each_key_and_long_objects_one_for_each_part() -> None:
    text = wire.to_bytes({"short": {"a": 1}, "long": {"a": "x" * 100, "b": [1, 2]}, "empty": {}}).decode()
    assert text == (
        f'{{\n "schema": {run.SCHEMA},\n "short": {{"a": 1}},\n "long": {{\n  "a": "{"x" * 100}",\n'
        '  "b": [1, 2]\n },\n "empty": {}\n}\n'
    )


def test_what_was_worked_out_ahead_decodes_the_same() -> None:
    job = JobSpec("digits", ("python", "train.py"), "/data", env={"A": "1"})
    wire.warm_up(JobSpec, RunState)
    assert wire.decode(JobSpec, wire.encode(job)) == job
    with pytest.raises(wire.WireError, match="name is missing"):
        wire.decode(JobSpec, {"command": ["a"]})
    with pytest.raises(wire.WireError, match=r"JobSpec\.timeouts\.preflight_s: expected float, found True"):
        wire.decode(JobSpec, {**wire.encode(job), "timeouts": {"preflight_s": True}})
