"""An order with code, from the desk's directory to the end of the run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.agent.place.submit import refuse_absent_tree
from holdfast.agent.place.unused import remove_unused
from holdfast.host.files.code import store
from holdfast.model.record import replace
from holdfast.transfer.code.push import push_tree
from holdfast.transfer.code.tree import read_tree
from tests.agent.ordering import RUN_ID, OrderBox, make_order
from tests.transfer.code.repositories import EntryBox, make_repository

pytestmark = pytest.mark.process


@pytest.mark.slow
@pytest.mark.requirement("PRE-13", "PRE-11", "XPORT-16")
def test_PRE_13_code_runs_as_it_was_meant_or_not_at_all(order_box: OrderBox, tmp_path: Path) -> None:
    top = make_repository(
        tmp_path / "r", {"job/run.sh": "#!/bin/sh\r\ncat ../lib/word\r\nexit 4\r\n", "lib/word": "meant\n"}
    )
    (top / "job/run.sh").chmod(0o755)
    tree = read_tree(str(top / "job"), os.environ)
    push_tree(EntryBox(Path(order_box.root)), tree)  # type: ignore[arg-type]
    order = replace(make_order("./run.sh"), code=tree.ref)

    assert order_box.submit(order)["code"] == 0
    assert order_box.ended() == 4
    assert Path(order_box.run_dir(), "attempts/1/output.log").read_text() == "meant\n"

    whole = Path(store.tree_dir(order_box.root, tree.ref.tree), store.FILES, "lib/word")
    whole.chmod(0o600)
    whole.write_text("other\n")
    second = f"{RUN_ID[:-4]}0002"
    refused = order_box.submit(replace(order, run_id=second))
    assert (refused["error"]["code"], "is damaged" in refused["error"]["message"]) == ("storage", True)
    assert not os.path.exists(order_box.run_dir(second))


def test_a_tree_is_not_swept_between_the_look_at_it_and_the_run_that_names_it(
    order_box: OrderBox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = read_tree(str(make_repository(tmp_path / "r", {"run.sh": "exit 4"})), os.environ)
    push_tree(EntryBox(Path(order_box.root)), tree)  # type: ignore[arg-type]
    place = store.tree_dir(order_box.root, tree.ref.tree)
    # As where all of it is remembered: nothing is written there.
    monkeypatch.setattr(store, "open_memory", lambda _: None)
    os.utime(place, (1, 1))
    refuse_absent_tree(replace(make_order("true"), code=tree.ref), order_box.root)
    assert remove_unused(order_box.root) == {"removed": [], "kept": {place: "used lately"}}
