"""A table comes and goes, and all else in the file stays to the letter."""

from __future__ import annotations

import pytest

from holdfast.desk.places.edit import add_table, remove_table
from holdfast.desk.places.schema import parse_places
from holdfast.desk.toml import parse_toml
from holdfast.model.errors import UsageError
from holdfast.model.place import Place, Rent
from tests.each import each

pytestmark = pytest.mark.pure

MINE = """# my machines

[gpu1]      # the good one
host = "gpu1"  # by alias
setup = '''
[gpu2]
# not a comment
'''

# the old one
[gpu2]
host   =   "gpu2"
# its port was 22

# rented
[ "rent" ]
host = "r"
"""


def remove(text: str, name: str) -> str:
    return remove_table(text, name, "places.toml")


def test_a_table_is_appended_and_reads_back() -> None:
    place = Place("new", host="me@x", port=22, root="~/r", setup=('say "é\x7f\\"', "b"), env_from="login")
    made = add_table(MINE, place)
    assert made.startswith(MINE)
    assert parse_places(parse_toml(made, ""))["new"] == place


def test_a_rent_is_written_and_read_back() -> None:
    rent = Rent("2026-11-23T08:00:00.000Z", 2.5, "USD", also=("volume",), status_command=("a", "b"))
    for place in (Place("new", host="x", profile="runpod", rent=rent), Place("new", host="x", rent=Rent())):
        made = add_table(MINE, place)
        read = parse_places(parse_toml(made, ""))["new"]
        assert (read.profile, read.rent or Rent()) == (place.profile, place.rent)


@each(
    "before",
    ["", "# a comment", "[a]\nhost='a'", "[a]\r\nhost='a'\r\n", '\n\n[a.b]\nc = 1\n[["d"]]\n', "a = {b = 1}"],
)
def test_a_table_can_be_taken_out_again(before: str) -> None:
    made = add_table(before, Place("new", host="x"))
    assert remove(made, "new").rstrip() == before.rstrip()


def test_exactly_the_table_is_removed() -> None:
    assert remove(MINE, "gpu1") == MINE[: MINE.index("[gpu1]")] + MINE[MINE.index("# the old one") :]
    without = remove(MINE, "gpu2")
    assert "# the old one\n# its port was 22\n\n# rented\n" in without
    assert list(parse_places(parse_toml(without, ""))) == ["gpu1", "rent"]
    assert remove(MINE, "rent") == MINE[: MINE.index("[ ")]


def test_tables_below_the_place_go_with_it() -> None:
    assert remove('[a]\nhost = "x"\n[a.slurm]\nb = 1\n[c]\nhost = "c"\n[a.more]\n', "a") == '[c]\nhost = "c"\n'


@each("text", ["a.host = 'x'\n", "a = {host = 'x'}\n", '[b]\nhost = "b"\n', "['a'.b]\n['c']\n[x]\na = 1"])
def test_what_is_no_table_of_its_own_is_left_to_a_person(text: str) -> None:
    if text.startswith("['a'"):
        assert remove(text, "a") == "['c']\n[x]\na = 1"
        return
    if "b" in parse_toml(text, "").value:  # type: ignore[operator]
        assert remove(text, "a") == text
        return
    with pytest.raises(UsageError, match="not written as a table of its own"):
        remove(text, "a")


def test_a_file_whose_end_takes_no_table_is_refused() -> None:
    with pytest.raises(UsageError):
        add_table("[a.b]\nc=1", Place("a", host="x"))
