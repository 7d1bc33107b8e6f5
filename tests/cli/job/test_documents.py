"""Reading YAML and TOML with places: strict, bounded, and never a traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.job.documents import MAX_BYTES, Node, load_document, parse_toml, parse_yaml
from holdfast.model.errors import JobFileError
from tests.each import each

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def plain(node: Node) -> object:
    if isinstance(node.value, dict):
        return {key: plain(inner) for key, inner in node.value.items()}
    if isinstance(node.value, list):
        return [plain(inner) for inner in node.value]
    return node.value


def inner(node: Node, *path: str | int) -> Node:
    for step in path:
        assert isinstance(node.value, (dict, list))
        node = node.value[step]  # type: ignore[index]  # as the test says
    return node


@pytest.mark.pure
@each(
    ("written", "value"),
    [
        ("1", 1),
        ("-3", -3),
        ("0.5", 0.5),
        ("1e-3", 0.001),
        ("true", True),
        ("no", False),
        ("~", None),
        ("", None),
        ("0644", "0644"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2026-11-20", "2026-11-20"),
        ("4h", "4h"),
        ("0,1", "0,1"),
        ('"1"', "1"),
        ("'yes'", "yes"),
        ("1" * 40, "1" * 40),
        (".inf", ".inf"),
    ],
)
def test_yaml_scalars_mean_what_is_written(written: str, value: object) -> None:
    node = inner(parse_yaml(f"a: {written}\n", "job.yaml"), "a")
    assert node.value == value
    assert type(node.value) is type(value)


@pytest.mark.pure
def test_yaml_remembers_the_line_of_each_key_and_the_text_as_written() -> None:
    tree = parse_yaml("name: x\n\ngpu:\n  # a comment\n  min_free:\n    10GB\nlr: 1e-3\nlist:\n- a\n- b\n", "job.yaml")
    assert inner(tree, "gpu", "min_free").where == "job.yaml:5"
    assert inner(tree, "gpu").line == 3
    assert inner(tree, "lr").text == "1e-3"
    assert inner(tree, "list", 1).where == "job.yaml:10"


@pytest.mark.pure
def test_a_tab_in_the_indentation_is_named() -> None:
    for text in ("command: x\n\tname: x\n", "gpu:\n\tmin_free: 1GB\n", "gpu:\n  \twait: 1h\n"):
        with pytest.raises(JobFileError) as caught:
            parse_yaml(text, "job.yaml")
        assert caught.value.hint == "nothing was started; indent with spaces, not tabs", text


@pytest.mark.pure
def test_yaml_duplicates_are_reported_and_the_first_counts() -> None:
    tree = parse_yaml("a: 1\nb: 2\na: 3\n", "job.yaml")
    assert plain(tree) == {"a": 1, "b": 2}
    assert tree.duplicates == (("a", 3),)


@pytest.mark.pure
def test_yaml_aliases_stand_for_their_anchor() -> None:
    assert plain(parse_yaml("a: &x [1, 2]\nb: *x\n", "job.yaml")) == {"a": [1, 2], "b": [1, 2]}


@pytest.mark.pure
@each(
    ("text", "message"),
    [
        ("a: [1,\n", "job.yaml:1: not valid YAML: "),
        ("a:\n\t- 1\n", "job.yaml:2: not valid YAML: "),
        ("a: 1\n---\nb: 2\n", "job.yaml:2: a second document begins here"),
        ("a: &x\n  b: *x\n", "job.yaml:2: the alias *x contains itself"),
        ("a: *nope\n", "job.yaml:1: the alias *nope is not defined"),
        ("a: !!python/object/apply:os.system [id]\n", "job.yaml:1: the tag tag:yaml.org,2002:python/object"),
        ("a: !secret x\n", "job.yaml:1: the tag !secret"),
        ("base: &b {x: 1}\na:\n  <<: *b\n", "job.yaml:3: merge keys (<<) are not used here"),
        ("? [a, b]\n: 1\n", "job.yaml:1: a key must be plain text"),
        ("[" * 100 + "]" * 100, "job.yaml:1: more than 20000 values or 32 levels"),
        ("[" * 200_000, "job.yaml:1: more than 20000 values or 32 levels"),
        ("a: [" + "1," * 30_000 + "]", "job.yaml:1: more than 20000 values"),
        ("a: &x 1\nb: [" + "*x," * 200 + "]", "job.yaml:2: more than 100 aliases"),
        ("a: \x01\n", "job.yaml: not valid YAML"),
    ],
)
def test_yaml_that_is_refused_says_where(text: str, message: str) -> None:
    with pytest.raises(JobFileError) as caught:
        parse_yaml(text, "job.yaml")
    assert str(caught.value).startswith(message)


@pytest.mark.pure
def test_a_billion_laughs_stay_small() -> None:
    lines = ['a0: &a0 ["lol"]'] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    tree = parse_yaml("\n".join(lines), "job.yaml")
    assert inner(tree, "a9").where == "job.yaml:10"


@pytest.mark.slow
@pytest.mark.pure
@given(st.text(max_size=80))
def test_any_text_is_a_tree_or_a_job_file_error(text: str) -> None:
    for parse in (parse_yaml, parse_toml):
        assert says_where(parse, text)


def says_where(parse: Callable[[str, str], Node], text: str) -> bool:
    try:
        return parse(text, "job").where.startswith("job")
    except JobFileError as error:
        return str(error).startswith("job")


@pytest.mark.pure
def test_toml_knows_its_lines() -> None:
    text = 'name = "x"\n\n[gpu]\nmin_free = "10GB"\nshare = true\n[limits]\ncpus = 0.50\n[env]\n"A" = "1"\n'
    tree = parse_toml(text, "job.toml")
    assert plain(tree) == {
        "name": "x",
        "gpu": {"min_free": "10GB", "share": True},
        "limits": {"cpus": 0.5},
        "env": {"A": "1"},
    }
    assert inner(tree, "gpu", "share").where == "job.toml:5"
    assert inner(tree, "limits", "cpus").text == "0.50"
    assert inner(tree, "env", "A").line == 9


@pytest.mark.pure
def test_toml_dotted_keys_and_inline_tables_have_the_nearest_line() -> None:
    tree = parse_toml('x = 1\ngpu.wait = "1h"\nlimits = { cpus = 2 }\n', "job.toml")
    assert inner(tree, "gpu", "wait").line == 2
    assert inner(tree, "gpu").line == 2
    assert inner(tree, "limits", "cpus").line == 3


@pytest.mark.pure
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = \n", "job.toml:1: not valid TOML: "),
        ("a = 1\na = 2\n", "job.toml:2: not valid TOML: "),
        ("a = " + "[" * 5000, "job.toml: nested too deeply"),
    ],
)
def test_toml_that_is_refused_says_where(text: str, message: str) -> None:
    with pytest.raises(JobFileError) as caught:
        parse_toml(text, "job.toml")
    assert str(caught.value).startswith(message)


@pytest.mark.cli
@pytest.mark.parametrize("ending", ["yaml", "toml"])
def test_byte_order_mark_and_crlf_are_fine(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"job.{ending}"
    sign = ":" if ending == "yaml" else " ="
    path.write_bytes(b"\xef\xbb\xbf" + f'name{sign} "x"\r\ncommand{sign} "true"\r\n'.encode())
    tree = load_document(str(path))
    assert plain(tree) == {"name": "x", "command": "true"}
    assert inner(tree, "command").line == 2


@pytest.mark.cli
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfen\0a\0", "is UTF-16 text"),
        (b"a: 1\nb: \x89PNG\n", ":2: is not UTF-8 text (byte 0x89)"),
        (b"\x7fELF\0\0", "is not a text file"),
        (b"#" * (MAX_BYTES + 1), "is larger than 1 MiB"),
    ],
)
def test_files_that_are_no_job_files(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    with pytest.raises(JobFileError) as caught:
        load_document(str(path))
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


@pytest.mark.cli
def test_missing_files_and_directories_get_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: x\n")
    with pytest.raises(JobFileError, match="no such job file") as caught:
        load_document(str(tmp_path / "jub.yaml"))
    assert caught.value.hint == f"did you mean {tmp_path}/job.yaml?"
    with pytest.raises(JobFileError, match="is a directory") as caught:
        load_document(str(tmp_path))
    assert caught.value.hint == f"did you mean {tmp_path}/job.yaml?"
    with pytest.raises(JobFileError, match="no such job file") as caught:
        load_document(str(tmp_path / "absent" / "job.yaml"))
    assert "there is no directory" in caught.value.hint
    with pytest.raises(JobFileError, match="no such job file") as caught:
        load_document("python3 t.py")
    assert caught.value.hint == "to run a command: holdfast run -- python3 t.py"
    with pytest.raises(JobFileError, match="cannot be read"):
        load_document(str(tmp_path / "job.yaml" / "x"))
    with pytest.raises(JobFileError, match="cannot be read"):
        load_document("a\0b")


@pytest.mark.cli
def test_an_endless_file_is_not_read_to_its_end() -> None:
    with pytest.raises(JobFileError, match="larger than 1 MiB"):
        load_document("/dev/zero")
