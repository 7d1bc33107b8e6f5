"""A run of the queue that was started again by hand: its cell follows it."""

from __future__ import annotations

import os

from holdfast.cli.render import note


def tell_queue(run_dir: str) -> None:
    """Have the queue look after the new attempt of a run whose cell it counts as closed or held.

    A cell that is at work is watched anyway, one that waits finds the attempt when it is its turn. Of another queue
    (another box, HOLDFAST_QUEUE) nothing is known here. Never raises: the run was started, whatever the queue says.
    """
    from holdfast.host import files
    from holdfast.model import wire
    from holdfast.model.errors import HoldfastError
    from holdfast.model.queue import CellRef, CellState, OrderVerb
    from holdfast.store.queue import queue_directory

    path = f"{run_dir}/{wire.RUN}"
    try:
        reference = wire.decode(CellRef, wire.parse_object(files.read_bytes(path), path).get("cell"), path)
    except (OSError, wire.WireError):
        # Not of a queue.
        return
    if not os.path.isdir(queue_directory()):
        return
    from .opening import build_order, open_queue, start_worker

    closed = {CellState.FAILED, CellState.CANCELLED, CellState.HELD, CellState.DONE}
    try:
        with open_queue() as queue:
            if queue.settings().queue_id != reference.queue:
                return
            found = queue.find([f"{reference.group}/{reference.name}"])
            cells = [cell for cell in found if cell.key == reference.key and cell.state in closed]
            if not cells:
                return
            queue.order(build_order(OrderVerb.RETRY, cells=cells, values={"done": True}))
            note(f"its cell {cells[0].label} is open again until this attempt has ended")
            start_worker(queue)
    except HoldfastError as error:
        note(f"its cell {reference.group}/{reference.name} stays as it is in the queue: {error}")
