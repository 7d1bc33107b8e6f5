"""What a run in the foreground writes reaches the place's log, whatever kind of reader that is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.place.foreground.relay import Relay
from holdfast.model import wire

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def test_a_pipe_that_is_non_blocking_gets_everything(tmp_path: Path) -> None:
    """Those of an event loop are: a write that did not fit ended the relay, and what came after it was lost."""
    run_dir = str(tmp_path / "20261122-100000-t-0000")
    directory = wire.attempt_dir(run_dir, 1)
    os.makedirs(directory)
    content = b"".join(b"%d\n" % number for number in range(60_000))
    with open(f"{directory}/{wire.OUTPUT}", "wb") as file:
        file.write(content)
    out, place = os.pipe()
    null = os.open(os.devnull, os.O_WRONLY)
    os.set_blocking(place, False)
    relay = Relay(run_dir, 1, (place, null), grace_limit_s=None, as_json=False)
    os.close(place)
    read = bytearray()
    while len(read) < len(content) and (piece := os.read(out, 1 << 16)):
        read += piece
    relay.finish(last=True)
    os.close(out)
    os.close(null)
    assert bytes(read) == content
