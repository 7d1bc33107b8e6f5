"""One machine's entry of a netrc: found in every notation, merged, never repeated in errors."""

from __future__ import annotations

import netrc
from typing import TYPE_CHECKING

import pytest

from holdfast.core.netrc import NetrcEntry, NetrcError, build_entry, find_entry, merge_entry

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.pure

ONE_LINE = "machine a.org login me password one\nmachine b.org login you password two\n"
MANY_LINES = "# mine\nmachine a.org\n\tlogin me\n\tpassword one\n\nmachine b.org\n  login you\n  password two\n"
ALL_IN_ONE = "machine a.org login me password one machine b.org login you password two"
B = NetrcEntry("b.org", "you", None, "two")


@pytest.mark.requirement("B-27")
@pytest.mark.parametrize("text", [ONE_LINE, MANY_LINES, ALL_IN_ONE])
def test_one_machines_entry_is_taken_alone(text: str) -> None:
    assert find_entry(text, "a.org") == NetrcEntry("a.org", "me", None, "one")
    assert find_entry(text, "b.org") == B
    assert find_entry(text, "c.org") is None


def test_words_are_carried_as_they_are_written() -> None:
    text = 'machine a.org login me password "one \\" two"\nmachine b.org password #7 user x account y\n'
    assert find_entry(text, "a.org") == NetrcEntry("a.org", "me", None, '"one \\" two"')
    assert find_entry(text, "b.org") == NetrcEntry("b.org", "x", "y", "#7")


def test_a_macro_and_default_are_no_machines() -> None:
    text = "machine a.org login me password one\nmacdef init\nmachine b.org password no\n\ndefault login x password y\n"
    assert find_entry(text, "b.org") is None
    assert find_entry(text, "a.org") == NetrcEntry("a.org", "me", None, "one")


@pytest.mark.requirement("XPORT-12")
@pytest.mark.parametrize("text", [ONE_LINE, MANY_LINES, ALL_IN_ONE])
def test_XPORT_12_an_entry_is_replaced_and_the_others_stay(text: str, tmp_path: Path) -> None:
    merged = merge_entry(text, NetrcEntry("b.org", "we", None, "three"))
    assert "two" not in merged
    assert merged.startswith(text[: text.index("machine b.org")])
    (tmp_path / "n").write_text(merged)
    assert netrc.netrc(str(tmp_path / "n")).hosts == {"a.org": ("me", "", "one"), "b.org": ("we", "", "three")}
    assert merge_entry(merged, NetrcEntry("b.org", "we", None, "three")) == merged


@pytest.mark.requirement("XPORT-12")
@pytest.mark.parametrize("end", ["", "\n", "\ndefault login x password y\n", "\nmacdef init\nbye\n\n"])
def test_XPORT_12_a_new_entry_stands_where_it_is_found_and_changes_nothing_else(end: str) -> None:
    text = "# keep\nmachine a.org login me password one # and this" + end
    merged = merge_entry(text, B)
    assert find_entry(merged, "b.org") == B
    block = "machine b.org\n  login you\n  password two\n"
    assert block in merged
    assert merged.replace(block, "").rstrip("\n") == text.rstrip("\n")
    assert "default" not in merged or merged.index("machine b.org") < merged.index("default")


def test_two_entries_of_a_machine_become_one() -> None:
    text = "machine b.org login x password p1\nmachine a.org login me password one\nmachine b.org login y password p2\n"
    with pytest.raises(NetrcError, match=r"has 2 entries for b\.org that differ"):
        find_entry(text, "b.org")
    merged = merge_entry(text, B)
    assert merged == "machine b.org\n  login you\n  password two\nmachine a.org login me password one\n\n"


@pytest.mark.parametrize(
    "text",
    [
        "hunter2 machine",
        "machine a.org login me hunter2 x",
        "machine a.org password",
        'machine a.org password "hunter2',
    ],
)
def test_what_is_no_netrc_is_refused_by_its_line_and_not_repeated(text: str) -> None:
    for call in (lambda: find_entry(text, "a.org"), lambda: merge_entry(text, B)):
        with pytest.raises(NetrcError, match="line 1") as caught:
            call()
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "words", [{"login": "x"}, {"password": "a b"}, {"password": "a\nb"}, {"password": ""}, {"macdef": "x"}]
)
def test_an_entry_that_could_carry_another_is_refused(words: dict[str, str]) -> None:
    with pytest.raises(NetrcError):
        build_entry("a.org", words)
