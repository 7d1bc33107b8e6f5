"""The page about the lifecycle is what the table says, and a page that is not is noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.core.run.lifecycle import TABLE
from scripts import generate_lifecycle

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def test_the_projects_page_is_what_the_table_says() -> None:
    assert generate_lifecycle.PAGE.read_text(encoding="utf-8") == generate_lifecycle.build_page()


def test_every_pair_that_is_not_stale_is_on_the_page() -> None:
    page = generate_lifecycle.build_page()
    for (state, event), handler in TABLE.items():
        row = f"| {state.__name__.lower()} | `{event.__name__}"
        assert (row in page) == (handler.__name__ != "_stale"), row


def test_the_diagram_leads_from_the_beginning_to_the_end() -> None:
    page = generate_lifecycle.build_page()
    assert "    [*] --> created\n" in page
    assert "    finalizing --> ended: ResultsChecked, ResultsCopied, timer postflight\n" in page
    assert page.count(" --> ended") == 1, "there is one way into the end"


def test_an_old_page_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "lifecycle.md"
    monkeypatch.setattr(generate_lifecycle, "PAGE", page)
    assert generate_lifecycle.main(["--check"]) == 1
    assert generate_lifecycle.main([]) == 0
    assert generate_lifecycle.main(["--check"]) == 0
    page.write_text(page.read_text(encoding="utf-8").replace("running", "walking"), encoding="utf-8")
    assert generate_lifecycle.main(["--check"]) == 1
    assert "not what core/run/lifecycle.py says" in capsys.readouterr().err
