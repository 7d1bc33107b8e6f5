"""A user's own rules: read strictly, held to their examples, trusted only when nobody else can write them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.core.rules.text import RulesError
from holdfast.diagnosis.evidence import LineRole
from holdfast.diagnosis.logs import search
from holdfast.diagnosis.logs.attribute import judge_log
from holdfast.diagnosis.logs.bounds import check_expression, literal_begin
from holdfast.diagnosis.logs.rules import load_rules, parse_failure_rules, read_rules, rules_path
from holdfast.diagnosis.logs.scan import classify_text, read_log
from holdfast.model.errors import StorageError
from holdfast.model.verdict import FailureClass
from tests.each import each

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.files, pytest.mark.requirement("FAIL-15")]

RULE = r"""
# the licence server of the house
[licence]
pattern = '^LicenceError: no seat for (?P<feature>\w+)'
class = "transient"
remedy = "wait for a seat, then: holdfast restart"
example = ["LicenceError: no seat for solver", "LicenceError: no seat for mesh at 10:00"]
near_miss = "LicenceErrors are handled"
"""
OTHER = """
[probe]
pattern = 'probe [0-9]+ failed'
contains = "failed"
role = "cascade"
class = "communication"
remedy = "look at the first one"
example = "the probe 3 failed"
near_miss = "probe failed"
"""


def test_a_rule_is_read_with_all_it_says() -> None:
    first, second = parse_failure_rules(RULE + OTHER, "f.toml")
    assert (first.id, first.kind, first.role) == ("user.licence", FailureClass.TRANSIENT, LineRole.ROOT)
    assert first.triggers == ("LicenceError: no seat for ",)
    assert (second.id, second.role, second.triggers) == ("user.probe", LineRole.CASCADE, ("failed",))


def test_a_rule_is_used_and_comes_before_ours(tmp_path: Path) -> None:
    rules = parse_failure_rules(RULE, "f.toml")
    log = tmp_path / "output.log"
    log.write_text("step 1\nTraceback (most recent call last):\n  x\nLicenceError: no seat for solver\n")
    best = judge_log(read_log(str(log), rules=rules))[0]
    assert (best.detector, best.kind) == ("log.user.licence", FailureClass.TRANSIENT)
    assert best.facts["remedy"] == "wait for a seat, then: holdfast restart"
    assert best.facts["feature"] == "solver"
    own = RULE.replace("LicenceError: no seat for (?P<feature>\\w+)", "MemoryError").replace(
        "LicenceError: no seat for", "MemoryError"
    )
    assert judge_log(read_log(str(log)))[0].kind is FailureClass.BUG
    taken = parse_failure_rules(own, "f.toml")
    assert [match.pattern for match in classify_text("MemoryError\n", taken)] == ["user.licence", "ram"]


@each(
    ("old", "new", "message"),
    [
        ('class = "transient"', 'class = "weather"', "f.toml:5: rule 'licence': class is none of out_of_memory"),
        ('class = "transient"', 'class = "unknown"', "f.toml:5: rule 'licence': class is none of"),
        ('class = "transient"', "class = 3", "f.toml:5: rule 'licence': class is a text in quotes"),
        ("remedy =", "remdy =", "f.toml:6: unknown key 'licence.remdy'"),
        ("[licence]", "", "f.toml:4: unknown key 'pattern'"),
        ('near_miss = "LicenceErrors are handled"', "", "f.toml:4: rule 'licence' has no near_miss"),
        ("no seat for solver", "seat for solver", "f.toml:7: rule 'licence': none of its words"),
        ("for solver", "for  solver", "f.toml:7: rule 'licence': the pattern does not match the example"),
        (
            '"LicenceErrors are handled"',
            '"LicenceError: no seat for x"',
            "f.toml:8: rule 'licence': the pattern matches the near miss",
        ),
        ("'^LicenceError", "'(^LicenceError", "f.toml:4: rule 'licence': the pattern is no regular expression"),
        ("'^LicenceError: no seat", "'.*: no seat", "f.toml:4: rule 'licence': state `contains`"),
        (r"\w+)'", r"\w+)(x+)+'", "f.toml:4: rule 'licence': the pattern repeats a group"),
        ('remedy = "wait', 'contains = "x1"\nremedy = "wait', "f.toml:6: rule 'licence': state `contains`"),
        ('remedy = "wait', 'role = "boss"\nremedy = "wait', "f.toml:6: rule 'licence': role is none of root, cascade"),
        ("near_miss = ", "near_miss = []\nnear_miss2 = ", "f.toml:9: unknown key"),
        ('"LicenceErrors are handled"', "[]", "f.toml:8: rule 'licence': near_miss is a text in quotes or a list"),
        ("for mesh", "for mesh" + "x" * 600, "rule 'licence': an example is longer"),
    ],
)
def test_a_rule_that_is_wrong_is_refused_with_its_line(old: str, new: str, message: str) -> None:
    assert old in RULE
    with pytest.raises(RulesError) as error:
        parse_failure_rules(RULE.replace(old, new), "f.toml")
    assert message in str(error.value)


def test_too_many_rules_are_refused() -> None:
    text = "".join(OTHER.replace("[probe]", f"[probe{number}]") for number in range(65))
    with pytest.raises(RulesError, match="65 rules; at most 64"):
        parse_failure_rules(text, "f.toml")


def test_the_file_is_looked_for_in_this_order() -> None:
    assert rules_path({"HOLDFAST_FAILURE_RULES": "/a", "XDG_CONFIG_HOME": "/b", "HOME": "/c"}) == "/a"
    assert rules_path({"XDG_CONFIG_HOME": "/b", "HOME": "/c"}) == "/b/holdfast/failures.toml"
    assert rules_path({"HOME": "/c"}) == "/c/.config/holdfast/failures.toml"
    assert rules_path({"XDG_CONFIG_HOME": "relative"}) == ""
    assert rules_path({}) == ""


def test_no_file_is_no_rules_but_a_named_one_must_exist(tmp_path: Path) -> None:
    assert load_rules({}) == ()
    assert load_rules({"HOME": str(tmp_path)}) == ()
    with pytest.raises(StorageError, match="does not exist"):
        load_rules({"HOLDFAST_FAILURE_RULES": str(tmp_path / "x")})


def write(tmp_path: Path, text: str, mode: int = 0o600) -> dict[str, str]:
    path = tmp_path / "failures.toml"
    path.write_text(text)
    path.chmod(mode)
    return {"HOLDFAST_FAILURE_RULES": str(path)}


def test_a_file_is_loaded_and_what_is_wrong_with_it_is_a_reason(tmp_path: Path) -> None:
    environ = write(tmp_path, RULE)
    assert [rule.id for rule in load_rules(environ)] == ["user.licence"]
    assert read_rules(environ).value == load_rules(environ)
    reading = read_rules(write(tmp_path, "nonsense"))
    assert not reading.known
    assert "failures.toml:1" in reading.unread
    with pytest.raises(StorageError) as error:
        load_rules(environ)
    assert "docs/failure-rules.md" in error.value.hint


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_not_trusted(tmp_path: Path, mode: int) -> None:
    with pytest.raises(StorageError, match="can be written by others"):
        load_rules(write(tmp_path, RULE, mode))


def test_a_file_of_somebody_else_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = write(tmp_path, RULE)
    owner = os.stat(environ["HOLDFAST_FAILURE_RULES"]).st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:
        assert load_rules(environ), "root's file is trusted"
        os.chown(environ["HOLDFAST_FAILURE_RULES"], 4242, -1)
    with pytest.raises(StorageError, match="belongs to uid"):
        load_rules(environ)


def test_what_is_no_readable_text_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="not a regular file"):
        load_rules({"HOLDFAST_FAILURE_RULES": str(tmp_path / "pipe")})
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "bytes").chmod(0o600)
    with pytest.raises(StorageError, match="not UTF-8"):
        load_rules({"HOLDFAST_FAILURE_RULES": str(tmp_path / "bytes")})
    with pytest.raises(StorageError, match="larger than"):
        load_rules(write(tmp_path, "#" * 70_000))


@pytest.mark.parametrize(
    "pattern",
    [
        r"^LicenceError: no seat for (?P<feature>\w+)",
        r"(\d+) of (\d+) used by .*",
        r"\bfoo (\S+): (.*)$",
        r"(?i)^error .* in .* at .*",
        r"x{3}y\x41+b",
        r"a(?:b|cd)?e",
        r"[^]]+\]",
    ],
)
def test_an_ordinary_pattern_is_accepted(pattern: str) -> None:
    assert check_expression(pattern) == ""


@each(
    "pattern",
    [
        r"(a+)+$",
        r"(a|a)*b",
        r"(a?){30}a{30}",
        r"a*a*a*a*b",
        r".*a.*b.*c",
        r"^\d+(?:a|\d)\d+\d+\d+\d+$",
        r"^\w+\w+\w+\w+x|y",
        "a?" * 30 + "a" * 30,
        r"(?P<a>x)(?P=a)",
        r"(x)\1",
        r"(?=a)b",
        r"(?<!a)b",
        r"(?>a+)b",
        "x" * 501,
        "[",
        r"(?x) a b",
    ],
)
def test_a_pattern_that_cannot_be_bounded_is_refused(pattern: str) -> None:
    assert check_expression(pattern) != ""


@each(
    ("pattern", "begin"),
    [
        (r"^Error \[x\]: (.*)", "Error [x]: "),
        (r"abcd?", "abc"),
        (r"abc\.*", "abc"),
        (r"abc+", "abc"),
        (r"abc|d", ""),
        (r"(?i)abc", ""),
        (r".*abc", ""),
        (r"abc\d", "abc"),
    ],
)
def test_the_plain_beginning_of_a_pattern(pattern: str, begin: str) -> None:
    assert literal_begin(pattern) == begin


def test_a_rule_that_takes_too_long_is_left_out_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MOST_SECONDS", -1.0)
    log = tmp_path / "output.log"
    log.write_text("LicenceError: no seat for solver\n")
    reading = read_log(str(log), rules=parse_failure_rules(RULE, "f.toml"))
    assert reading.value is not None
    assert reading.value.matches == ()
    assert not reading.value.whole
