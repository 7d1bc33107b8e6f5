"""Names and bytes of a checkpoint: only ours are taken for ours, and any byte that changes is seen."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import step_names
from holdfast.training.storage import arrays, layout
from holdfast.training.storage.layout import CommitRecord, FileEntry, LayoutError, NewerFormat
from tests.each import each

pytestmark = pytest.mark.pure

RECORD = CommitRecord(
    step=500,
    files=(FileEntry("model.safetensors", 100, (7,)), FileEntry("rank-1/state.json", 3, (1,))),
    created=1.5,
    metrics={"loss": 0.5, "bad": "nan"},
    tracked={"model": {"replicated": False, "kind": "stateful"}},
    versions={"holdfast": "1"},
    seed=3,
)


@pytest.mark.parametrize("name", ["step-0", "step-7", "step-999999999999999999"])
def test_a_visible_checkpoint_is_one_by_its_name(name: str) -> None:
    assert step_names.step_name(step_names.parse_step(name) or 0) == name


@each(
    "name",
    [
        *(
            "step-01",
            "step--1",
            "step-",
            "step-1 ",
            "Step-1",
            "step-1.bad-1",
            ".step-1.abcd",
            "step-\u0661",
            "step-1\n",
        ),
        *("xstep-1", "step-1/", "step-1.tmp", "step-9999999999999999999", "step-1.0", "last", ""),
    ],
)
def test_any_other_name_is_no_checkpoint(name: str) -> None:
    assert step_names.parse_step(name) is None


@given(st.integers(0, 10**18 - 1), st.binary(min_size=2, max_size=16))
def test_what_is_being_built_is_never_taken_for_a_checkpoint(step: int, token: bytes) -> None:
    name = layout.building_name(step, token.hex())
    assert layout.is_building(name)
    assert step_names.parse_step(name) is None
    assert not layout.is_bad(name)


def test_a_checkpoint_set_aside_takes_the_first_free_name() -> None:
    assert layout.bad_name(3, set()) == "step-3.bad-1"
    assert layout.bad_name(3, {"step-3.bad-1", "step-3.bad-2"}) == "step-3.bad-3"
    assert layout.is_bad("step-3.bad-3")
    assert step_names.parse_step("step-3.bad-3") is None


@each("name", ["", ".x", "a/b", "../x", "a b", "\u00e4", "x" * 101, "-x", "a\n", "a\0"])
def test_a_tracked_name_that_could_not_be_a_file_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be tracked"):
        layout.check_name(name)


@given(
    st.dictionaries(
        st.text(max_size=8).filter(lambda key: key != "__metadata__"),
        st.tuples(st.sampled_from(sorted(arrays.SIZES)), st.lists(st.integers(0, 4), max_size=3)),
        max_size=6,
    )
)
def test_every_header_says_where_the_arrays_are_and_aligns_them(table: dict[str, tuple[str, list[int]]]) -> None:
    described = {key: arrays.DescribedArray("numpy", code, tuple(shape)) for key, (code, shape) in table.items()}
    header, places, nbytes = layout.place_arrays(described)
    data = header + bytes(nbytes - len(header))
    parsed = layout.parse_arrays(memoryview(data), "x")
    assert {place.key: place for place in places} == parsed
    assert len(header) % layout.PAGE == 0
    for key, place in parsed.items():
        assert (place.code, place.shape) == (described[key].code, described[key].shape)
        assert place.start % arrays.SIZES[place.code] == 0
    spans = sorted((place.start, place.end) for place in places)
    ends = [len(header), *(end for _, end in spans)]
    assert all(start == end for (start, _), end in zip(spans, ends, strict=False)), "no holes, no overlaps"


def entry(**more: Any) -> bytes:
    head = {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **more}}
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + bytes(8)


@each(
    "data",
    [
        b"",
        b"1234567",
        (2**63).to_bytes(8, "little"),
        (10**9).to_bytes(8, "little") + b"{}",
        (5).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"\xff\xfe",
        (40).to_bytes(8, "little") + b"[" * 40,
        entry(data_offsets=[0, 9]),
        entry(data_offsets=[-8, 0]),
        entry(data_offsets=[8, 16]),
        entry(data_offsets=[0]),
        entry(shape=[2**62]),
        entry(shape=[-1, -2]),
        entry(shape="ab"),
        entry(dtype="F4"),
        entry(dtype=None),
        entry(dtype=[]),
    ],
)
def test_a_damaged_header_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(LayoutError, match=r"^model\.safetensors"):
        layout.parse_arrays(memoryview(data), "model.safetensors")


def test_a_record_comes_back() -> None:
    assert layout.record_from_bytes(layout.record_to_bytes(RECORD), "x") == RECORD


@pytest.mark.requirement("CKPT-04")
def test_any_bit_of_a_record_that_flips_is_seen() -> None:
    data = layout.record_to_bytes(RECORD)
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            try:
                assert layout.record_from_bytes(bytes(changed), "x") == RECORD  # white space between the fields
            except LayoutError:
                continue


@pytest.mark.requirement("CKPT-04")
@given(st.data())
def test_a_record_that_is_cut_off_is_never_one(data: st.DataObject) -> None:
    whole = layout.record_to_bytes(RECORD).rstrip()
    with pytest.raises(LayoutError):
        layout.record_from_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))], "x")


def test_a_newer_format_is_named_with_both_versions() -> None:
    body = json.loads(layout.record_to_bytes(RECORD))
    body["version"] = layout.VERSION + 1
    with pytest.raises(NewerFormat, match=rf"version {layout.VERSION + 1}; this holdfast reads up to {layout.VERSION}"):
        layout.record_from_bytes(json.dumps(body).encode(), "x")


def signed(**change: Any) -> bytes:
    import hashlib

    body = json.loads(layout.record_to_bytes(RECORD))
    body.pop("sha256")
    body.update(change)
    body["sha256"] = hashlib.sha256(layout._canonical(body)).hexdigest()
    return json.dumps(body).encode()


@each(
    "change",
    [
        {"step": "5"}, {"step": -1}, {"step": None}, {"step": True},
        {"world": "two"}, {"world": 0}, {"seed": "x"}, {"metrics": []}, {"metrics": None},
        {"tracked": []}, {"tracked": {"model": "x"}}, {"versions": 3}, {"created": None}, {"healthy": "yes"},
        {"files": None}, {"files": 3}, {"files": ["x"]}, {"files": [{}]},
        {"files": [{"path": "x", "bytes": -1, "chunks": [], "digest": "crc32", "chunk": 1}]},
        {"files": [{"path": "x", "bytes": 1, "chunks": [1], "digest": "crc32", "chunk": 0}]},
        {"files": [{"path": "x", "bytes": 1, "chunks": [1], "digest": "crc32", "chunk": 1 << 60}]},
        {"files": [{"path": "x", "bytes": "y", "chunks": [1], "digest": "crc32", "chunk": 1}]},
        {"files": [{"path": "x", "bytes": 1e400, "chunks": [1], "digest": "crc32", "chunk": 1}]},
        {"files": [{"path": "x", "bytes": 1, "chunks": 1, "digest": "crc32", "chunk": 1}]},
    ],
    ids=str,
)  # fmt: skip
def test_a_signed_record_with_fields_of_other_kinds_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(LayoutError):
        layout.record_from_bytes(signed(**change), "x")


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"\xff", b"[" * 5000, b'{"format": "torch"}'])
def test_what_is_no_record_at_all_is_refused(data: bytes) -> None:
    with pytest.raises(LayoutError):
        layout.record_from_bytes(data, "x")


def test_fields_that_are_unknown_are_left_alone() -> None:
    assert layout.record_from_bytes(signed(future={"x": 1}), "x") == RECORD


def test_places_of_arrays_use_the_size_of_their_elements() -> None:
    what = arrays.describe_array(array("d", [1, 2, 3]), "x")
    assert what.nbytes == 24
