"""A configuration that does not parse stops a job before anything is started or handed in, in every format (PRE-02)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.cli.job.config_syntax import find_config_problem
from tests.each import each

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli

MALFORMED = {
    "open list": ("c.yaml", "lr: 1\na: [1,\n", "line 2: not valid YAML"),
    "other ending": ("c.yml", "a: b: c\n", "line 1: not valid YAML"),
    "unknown alias": ("c.yaml", "a: *none\n", "the alias *none is not defined"),
    "toml": ("c.toml", "a = \n", "not valid TOML"),
    "second document": ("c.yaml", "a: &x 1\n---\nb: *x\n", "the alias *x is not defined"),
}
SOUND = {
    "tags": ("c.yaml", "when: !!timestamp 2026-01-01\nwhat: !include other.yaml\n"),
    "documents": ("c.yaml", "a: 1\n---\nb: 2\n"),
    "merge": ("c.yaml", "base: &b {lr: 1}\nx:\n  <<: *b\n"),
    "deep": ("c.yaml", "[" * 5000 + "]" * 5000),
    "no format": ("c.cfg", "a: [1,\n"),
    "toml": ("c.toml", "a = 1\n"),
    "empty": ("c.yaml", ""),
}


@each("case", sorted(MALFORMED))
def test_what_does_not_parse_is_named_with_its_line(tmp_path: Path, case: str) -> None:
    name, text, seen = MALFORMED[case]
    (tmp_path / name).write_text(text)
    assert seen in str(find_config_problem(str(tmp_path / name)))


@each("case", sorted(SOUND))
def test_what_parses_is_left_alone_whatever_it_means(tmp_path: Path, case: str) -> None:
    name, text = SOUND[case]
    (tmp_path / name).write_text(text)
    assert find_config_problem(str(tmp_path / name)) is None


def test_what_cannot_be_read_is_left_to_the_checks_on_the_box(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    (tmp_path / "LOUD.YAML").write_text("a: [1,\n")
    assert find_config_problem(str(tmp_path / "LOUD.YAML"))
    assert find_config_problem(str(tmp_path / "none.yaml")) is None
    assert find_config_problem(str(tmp_path / "pipe.yaml")) is None
    assert find_config_problem(str(tmp_path / "binary.yaml")) is None


@pytest.mark.slow
@pytest.mark.requirement("PRE-02", "RAIL-02")
def test_PRE_02_no_way_to_start_a_job_takes_a_malformed_yaml_file(
    holdfast: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yml").write_text("a: [1,\n")
    (tmp_path / "job.yaml").write_text("command: 'true'\nconfig: bad.yml\n")
    (tmp_path / "sweep.yaml").write_text("job: {command: [echo, '{lr}'], config: bad.yml}\ngrid: {lr: [1, 2]}\n")
    ways = (
        ("preflight", "--config", "bad.yml", "--", "true"),
        ("preflight", "job.yaml"),
        ("run", "--config", "bad.yml", "--", "true"),
        ("run", "job.yaml"),
        ("submit", "job.yaml"),
        ("sweep", "sweep.yaml"),
    )
    for words in ways:
        done = holdfast(*words)
        assert done.code == 78, (words, done)
        # `preflight` folds long cells.
        assert "not valid YAML" in " ".join((done.out + done.err).split()), (words, done)
    assert holdfast("ls", "--all", "--json").json()["runs"] == []
    found = holdfast("preflight", "--json", "job.yaml").json()["findings"]
    assert [item["evidence"][:7] for item in found if item["id"] == "config"] == ["line 1:"]


@pytest.mark.slow
@pytest.mark.requirement("PRE-02")
def test_a_restart_stops_nothing_for_a_configuration_that_does_not_parse(holdfast: Command, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("a: 1\n")
    run_dir = holdfast("run", "--json", "--config", str(config), "--", "true").json()["run_dir"]
    config.write_text("a: [1,\n")
    done = holdfast("restart", run_dir)
    assert (done.code, f"config {config}: line 1" in done.err) == (78, True), done
