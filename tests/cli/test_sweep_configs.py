"""Configurations of the user's program: what nobody touches keeps its text and meaning, what is laid over fits in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from holdfast.cli.sweep.configs import load_config
from holdfast.core.queue.overlay import merge_layers, set_value
from holdfast.model.errors import JobFileError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.files, pytest.mark.requirement("QUEUE-17")]

BASE = """\
# what the program reads
model: {width: 64, act: relu}
optimizer:
  lr: 0.001
  betas: [0.9, 0.999]
schedule:
day: 2024-01-01
big: 1_000
octal: 0o17
country: "no"
flag: no
0: number
"1": text
shared: &shared {k: 1}
other: {<<: *shared, z: 1e-3}
tag: !path data/x
"""


def lay_over(path: Path, **values: str) -> bytes:
    """The file with values put into it; ``__`` stands for a dot."""
    config = load_config(str(path))
    tree = merge_layers(config.tree, {})
    for name, text in values.items():

        def make(below: object, text: str = text) -> object:
            return config.dialect.leaf(text, quoted=False, below=below)

        set_value(tree, name.replace("__", "."), make)
    return config.dialect.dump(tree)


def read_yaml(data: bytes) -> Any:
    """What a program sees that uses PyYAML, with a tag of its own."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!path", lambda _, node: ("path", node.value))
    return yaml.load(data, Loader)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A configuration with everything in it that is easily lost."""
    path = tmp_path / "base.yaml"
    path.write_text(BASE)
    return path


def test_a_file_that_nobody_changed_means_the_same(base: Path) -> None:
    assert read_yaml(lay_over(base)) == read_yaml(BASE.encode())


def test_only_what_was_put_differs(base: Path) -> None:
    expected = read_yaml(BASE.encode())
    expected["optimizer"]["lr"] = 0.0001
    expected["schedule"] = {"warmup": 500.0}
    expected["model"]["act"] = "gelu"
    assert read_yaml(lay_over(base, optimizer__lr="1e-4", schedule__warmup="5e2", model__act="gelu")) == expected


def test_a_value_takes_the_kind_of_what_it_replaces(base: Path) -> None:
    content = read_yaml(lay_over(base, country="yes", flag="yes", model__width="128", optimizer__lr="1e-4"))
    assert content["country"] == "yes"
    assert content["flag"] is True
    assert content["model"]["width"] == 128
    assert content["optimizer"]["lr"] == pytest.approx(1e-4)


def test_the_same_layers_give_the_same_bytes(base: Path) -> None:
    assert lay_over(base, flag="yes") == lay_over(base, flag="yes")
    assert lay_over(base, flag="yes") != lay_over(base, flag="off")


def test_json_keeps_numbers_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    path.write_text('{"lr": 1e-3, "n": 12345678901234567890, "name": "a", "deep": {"x": null}, "l": [1.50, "b"]}')
    data = lay_over(path, lr="3e-4", deep__x__y="true", name="7")
    assert b"12345678901234567890" in data
    assert b"1.50" in data
    assert json.loads(data) == {
        "lr": 3e-4,
        "n": 12345678901234567890,
        "name": "7",
        "deep": {"x": {"y": True}},
        "l": [1.5, "b"],
    }


def test_toml_is_read_and_written_as_json(tmp_path: Path) -> None:
    path = tmp_path / "base.toml"
    path.write_text('lr = 1e-3\nname = "12"\non = true\n[a]\nb = [1, 2]\n')
    assert load_config(str(path)).dialect.ending == ".json"
    assert json.loads(lay_over(path, a__c="5")) == {"lr": 1e-3, "name": "12", "on": True, "a": {"b": [1, 2], "c": 5}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "a: [1"),
        ("a.yaml", "- a\n- b\n"),
        ("a.yaml", "a: &x [*x]"),
        ("a.yaml", "a: *nowhere"),
        ("a.yaml", "{" * 5000),
        ("a.yaml", "? [1]\n: 2"),
        ("a.json", "[1]"),
        ("a.json", "{"),
        ("a.json", '{"a":' * 5000),
        ("a.toml", "a ="),
    ],
)
def test_what_is_no_configuration_is_refused_with_its_file(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(JobFileError) as caught:
        load_config(str(path))
    assert str(caught.value).startswith(str(path))


@pytest.mark.slow
def test_aliases_that_multiply_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    lines = ["a0: &a0 {k: 1}"]
    lines += [f"a{n}: &a{n} {{{', '.join(f'x{i}: *a{n - 1}' for i in range(10))}}}" for n in range(1, 9)]
    path.write_text("\n".join(lines))
    with pytest.raises(JobFileError, match="more than"):
        load_config(str(path))
