"""The queue's journal: an act is written once and never over another, and what a killed writer left is swept."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.model.errors import StorageError
from holdfast.store.queue.journal import Journal, JournalAct

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files


def test_an_act_is_never_written_over_another_and_leftovers_of_killed_writers_go(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    with journal.hold():
        journal.commit(JournalAct(1, {"schema": 1, "time": 1.0, "act": "first"}))
        with pytest.raises(StorageError, match="it is there already"):
            journal.commit(JournalAct(1, {"schema": 1, "time": 2.0, "act": "second"}))
        assert journal.read(1).head["act"] == "first"
        (tmp_path / "journal" / ".0000000002.jsonl.77.ab.tmp").touch()
        journal.commit(JournalAct(2, {"schema": 1, "time": 3.0}))
    assert sorted(os.listdir(tmp_path / "journal")) == ["0000000001.jsonl", "0000000002.jsonl"]
    assert journal.numbers() == [1, 2]
    journal.close()


def test_an_act_of_a_newer_holdfast_is_refused_and_not_guessed_at(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    with journal.hold():
        journal.commit(JournalAct(1, {"schema": 2, "time": 1.0}))
    with pytest.raises(StorageError, match="newer holdfast"):
        journal.read(1)
    journal.close()
