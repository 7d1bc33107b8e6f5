"""Tells people when nothing of a group goes on by itself, if its jobs ask for that (``group`` in `notify.on`).

At least once: that the end of a group was told is noted in the queue's directory when a channel has taken it. Whoever
works the queue next tells what is not noted; the patrol says it meanwhile (`find_untold`). Only a worker sends.

Not for ever: each try is noted before it is sent. Where that cannot be, only the worker that saw the end sends it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.core.messages.channels import list_targets
from holdfast.host.clock import epoch_s, utc_now
from holdfast.host.files import files
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.host.process.processes import user_name
from holdfast.model import wire
from holdfast.model.job import Channels, Notify
from holdfast.model.queue import ACTIVE_STATES, JobState
from holdfast.model.record import field, record, replace

from .deliver import LIMIT_S, Delivery, deliver
from .tries import MOST_TRIES, Undelivered, find_pause_s, is_due

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.store.queue.queue import Queue

GROUP = "group"
GOES_ON = ACTIVE_STATES | {JobState.QUEUED}
TOLD = "told.json"
MOST_BYTES = 4 << 20
RECENT_S = 86400.0
"""An end that is older is not told any more."""
MOST_AT_ONCE = 8
"""Messages under way; the others wait for these."""
CUT_OFF = "its worker ended before anybody had taken it"
NOT_NOTED = "not sent: that it was could not be noted"


@record
class ToldGroups:
    """Of which end of each group people were told, by its key; and what nobody has taken yet."""

    told: dict[str, str] = field(default_factory=dict)
    untold: dict[str, Undelivered] = field(default_factory=dict)


@record
class GroupEnd:
    """A group of which nothing goes on. `key` tells this end from an earlier one of the same group."""

    group: str
    key: str
    counts: dict[str, int]
    notify: Notify
    channels: Channels

    @property
    def summary(self) -> str:
        """How many jobs of the group ended how, in words."""
        words = ", ".join(f"{number} {state}" for state, number in self.counts.items() if number)
        return f"group {self.group}: nothing goes on: {words}"


def read_told(queue: Queue) -> ToldGroups:
    """What is noted of this queue's groups; where that cannot be read nothing is, and all is told again."""
    path = f"{queue.directory}/{TOLD}"
    try:
        return wire.from_bytes(ToldGroups, files.read_bytes(path, limit=MOST_BYTES), path)
    except (OSError, wire.WireError):
        return ToldGroups()


def find_untold(queue: Queue, told: ToldGroups, groups: Iterable[str] | None = None) -> Iterator[GroupEnd]:
    """The ends, of `groups` or all, of which people want to be told and were not."""
    counts = queue.counts()
    for group in counts if groups is None else groups:
        if group not in counts or any(counts[group].get(state) for state in GOES_ON):
            continue
        last = queue.last_end(group)
        if last is None or last.ended_at is None or epoch_s() - last.ended_at > RECENT_S:
            continue
        key = f"{last.run_id} {last.attempts}"
        if told.told.get(group) == key:
            continue
        notify, channels = _read_ways(last.run_dir)
        if GROUP in notify.on and list_targets(notify, channels):
            yield GroupEnd(group, key, {state.value: n for state, n in counts[group].items()}, notify, channels)


class GroupMessages:
    """The messages of one queue's groups; each is delivered by a child while the worker goes on.

    `listen` is told of a descriptor that can be read once a message is through, `ignore` that it is over. `under_way`
    has the messages, by group.
    """

    def __init__(
        self, queue: Queue, log: Callable[[str], None], *, listen: Callable[[int], None], ignore: Callable[[int], None]
    ) -> None:
        """Nothing is told yet. `log` hears what went wrong."""
        self._queue, self._log, self._listen, self._ignore = queue, log, listen, ignore
        self._told = ToldGroups()
        self._seen: set[str] = set()
        self._waiting: dict[str, GroupEnd] = {}
        self.under_way: dict[str, tuple[GroupEnd, Offload]] = {}

    def begin(self) -> None:
        """Tell what an earlier worker has not."""
        self._told = read_told(self._queue)
        self.look()

    def tell(self, group: str, run_dir: str | None) -> None:
        """A job of `group` has ended, whose run is in `run_dir`: tell, if it was the last and asks for it."""
        if GROUP in _read_ways(run_dir)[0].on:
            self._seen.add(group)
            self.look({group, *self._told.untold})

    def look(self, groups: Iterable[str] | None = None) -> None:
        """Tell of the ends, of `groups` or all, that people want to be told of and were not; those that are due."""
        ends = {end.group: end for end in find_untold(self._queue, self._told, groups)}
        asked = self._told.untold if groups is None else groups
        untold = {group: kept for group, kept in self._told.untold.items() if group in ends or group not in asked}
        self._told = replace(self._told, untold=untold)
        for group, end in ends.items():
            if group not in self.under_way and is_due(untold.get(group), end.key, epoch_s()):
                self._waiting[group] = end
        self._send_waiting()

    def take_through(self) -> bool:
        """Note what became of the messages that are through, or took too long; whether there was one.

        What waited for them is sent, and what is due again.
        """
        through = [group for group, (_, work) in self.under_way.items() if work.is_done() or work.age_s > LIMIT_S]
        for group in through:
            self._settle(group, 0.0)
        self._send_waiting()
        if self.find_wait_s() == 0.0:
            self.look(set(self._told.untold))
        return bool(through)

    def find_wait_s(self) -> float | None:
        """Seconds until there is something to do that no descriptor tells of; None where there will not be."""
        now = epoch_s()
        left = [LIMIT_S - work.age_s for _, work in self.under_way.values()]
        left += [
            one.tried_at + find_pause_s(one.tries) - now
            for group, one in self._told.untold.items()
            if group not in self.under_way and group not in self._waiting and one.tries < MOST_TRIES
        ]
        return max(0.0, min(left)) if left else None

    def close(self) -> None:
        """Wait for what is under way, `LIMIT_S` from its start; the next worker sends what waited for it."""
        for group in list(self.under_way):
            self._settle(group, LIMIT_S)

    def _send_waiting(self) -> None:
        while self._waiting and len(self.under_way) < MOST_AT_ONCE:
            self._send(self._waiting.pop(next(iter(self._waiting))))

    def _send(self, end: GroupEnd) -> None:
        before = self._told.untold.get(end.group)
        tries = before.tries + 1 if before is not None and before.key == end.key else 1
        noted = self._keep(end, Undelivered(end.key, tries, problem=CUT_OFF))
        if not noted and end.group not in self._seen:
            self._keep(end, Undelivered(end.key, tries, epoch_s(), NOT_NOTED))
            return
        self._seen.discard(end.group)
        facts = {
            "state": GROUP,
            "summary": end.summary,
            "group": end.group,
            "counts": end.counts,
            "at": utc_now(),
            "host": os.uname().nodename,
            "user": user_name(os.geteuid()),
            "look": f"holdfast queue ls {end.group}",
        }
        # Of its own: what keeps the same from being told twice is the note.
        key = f"{self._queue.directory} {end.group} {end.key} {facts['at']}"

        def work() -> object:
            return wire.encode(deliver(end.notify, end.channels, facts, key))

        try:
            child = Offload(work)
        except OSError as error:
            self._note(end, Delivery({"all": str(error)}))
            return
        self.under_way[end.group] = (end, child)
        self._listen(child.fileno())

    def _settle(self, group: str, limit_s: float) -> None:
        end, work = self.under_way.pop(group)
        self._ignore(work.fileno())
        try:
            done = wire.decode(Delivery, work.wait(limit_s, since_start=True))
        except OffloadFailed as error:
            done = Delivery({"all": str(error)})
        self._note(end, done)

    def _note(self, end: GroupEnd, done: Delivery) -> None:
        """Note what became of a message; what went wrong goes to the log, too."""
        problems = [f"{label}: {problem}" for label, problem in done.problems.items() if problem]
        problems += [done.suppressed] if done.suppressed else []
        for problem in problems:
            self._log(f"the end of the group {end.group} was not told: {problem}")
        if None in done.problems.values():
            self._keep(end, None)
        else:
            tries = self._told.untold.get(end.group, Undelivered(tries=1)).tries
            self._keep(end, Undelivered(end.key, tries, epoch_s(), "; ".join(problems)))

    def _keep(self, end: GroupEnd, untold: Undelivered | None) -> bool:
        """Note that an end was told, or that it was not; whether that is on the disk."""
        groups = self._queue.groups()
        told = {group: key for group, key in self._told.told.items() if group in groups}
        others = {group: kept for group, kept in self._told.untold.items() if group in groups and group != end.group}
        if untold is None:
            self._told = ToldGroups({**told, end.group: end.key}, others)
        else:
            self._told = ToldGroups(told, {**others, end.group: untold})
        try:
            files.commit(f"{self._queue.directory}/{TOLD}", wire.to_bytes(self._told))
        except OSError as error:
            self._log(f"what was told of the group {end.group} cannot be noted: {error}")
            return False
        return True


def _read_ways(run_dir: str | None) -> tuple[Notify, Channels]:
    """Whom the job of a run tells; nobody where that cannot be read."""
    try:
        path = f"{run_dir}/{wire.RUN}"
        spec = wire.parse_object(files.read_bytes(path), path).get("job") or {}
        return wire.decode(Notify, spec.get("notify") or {}), wire.decode(Channels, spec.get("channels") or {})
    except (OSError, wire.WireError, AttributeError):
        return Notify(on=()), Channels()
