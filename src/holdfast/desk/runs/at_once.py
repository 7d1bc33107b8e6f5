"""Many places asked at once, each in a thread of its own: who gives no answer delays nobody.

When the time is up a thread is left alone. They are daemons, so the process leaves without them; each call that they
make has a limit of its own, at which a transport ends its child.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

GRACE_S = 0.4
"""How long a call may take to say that its own limit is over."""
LOOK_AGAIN_S = 0.1


class Asking(Generic[Item, Answer]):
    """Items that are being asked, from the moment on in which it is made."""

    def __init__(self, items: Sequence[Item], ask: Callable[[Item], Answer], *, name: Callable[[Item], str]) -> None:
        """`ask` is called once for each item, all at the same time; `name` is the thread's."""
        self._items, self._ask = items, ask
        self._answers: queue.SimpleQueue[tuple[int, Answer | None, Exception | None]] = queue.SimpleQueue()
        for number, item in enumerate(items):
            threading.Thread(target=self._run, args=(number,), name=name(item), daemon=True).start()

    def collect(
        self,
        end: float,
        late: Callable[[Item], Answer],
        *,
        hear: Callable[[Answer], None] = lambda _: None,
        is_busy: Callable[[Item], bool] = lambda _: False,
        longest: float = 0.0,
    ) -> list[Answer]:
        """What each has answered, in their order, once all have or the time is up.

        Args:
            end: On the monotonic clock.
            late: What counts as the answer of an item that gave none.
            hear: Gets each answer as it comes.
            is_busy: Whether an item is worth waiting for after `end`.
            longest: Until when, on the monotonic clock.

        Raises:
            Exception: what `ask` raised, which is a fault of ours.
        """
        found: dict[int, Answer] = {}
        while len(found) < len(self._items):
            now, until = time.monotonic(), end + GRACE_S
            if now >= until:
                waited = (item for number, item in enumerate(self._items) if number not in found)
                if now >= longest or not any(is_busy(item) for item in waited):
                    break
                until = now + LOOK_AGAIN_S
            try:
                number, answer, error = self._answers.get(timeout=max(0.001, until - now))
            except queue.Empty:
                continue
            if error is not None:
                raise error
            found[number] = answer  # type: ignore[assignment] # there is one where there is no error
            hear(found[number])
        for number, item in enumerate(self._items):
            if number not in found:
                found[number] = late(item)
                hear(found[number])
        return [found[number] for number in range(len(self._items))]

    def _run(self, number: int) -> None:
        try:
            self._answers.put((number, self._ask(self._items[number]), None))
        except Exception as error:  # noqa: BLE001 - a fault of ours: raised again by whoever waits for the answer
            self._answers.put((number, None, error))
