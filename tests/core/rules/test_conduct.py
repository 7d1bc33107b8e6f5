"""The rules of ``holdfast rules``: each says how it is held, on a page that is there, for requirements that are."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.rules.conduct import ASKED, BUILT_IN, CONDUCT, REFUSED, TOLD, describe_site
from holdfast.core.rules.rules import Rules, parse_rules

pytestmark = pytest.mark.pure
DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.requirement("DOC-01")
def test_each_rule_says_how_it_is_held_and_where_the_rest_stands() -> None:
    known = {line.split("\t")[0] for line in (DOCS / "requirements.tsv").read_text().splitlines()}
    pages = {path.name for path in DOCS.glob("*.md")}
    wrong = [
        each.name
        for each in CONDUCT
        if each.held not in (REFUSED, BUILT_IN, ASKED, TOLD)
        or not each.by
        or each.page not in pages
        or not set(each.requirements) <= known
    ]
    assert not wrong
    assert len({each.name for each in CONDUCT}) == len(CONDUCT)


def test_the_rules_file_of_a_box_is_told() -> None:
    assert describe_site(Rules()) == []
    text = 'max_hold = "24h"\nmax_cards = 4\n[share]\ncards_per_user = 2\n'
    said = dict(describe_site(parse_rules(text, "/etc/holdfast/rules.toml")))
    assert said == {"max_hold": "1d00h", "max_cards": "4", "cards_per_user": "2", "nice": "10"}
