"""Notifies people by the ways that a job names: bounded, and never a reason for the run to change (OBS-16).

Each message is delivered by a child of its own while the supervisor goes on; only at the very end is there a wait, for
what is still under way. What was not delivered is an event, which `show` and the end's summary say.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from holdfast.host.clock import parse_utc, utc_now
from holdfast.host.files import files
from holdfast.host.files.secret_files import read_known_values
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.host.process.processes import user_name
from holdfast.model import wire
from holdfast.model.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.job import Channels, JobSpec, Notify

    from .context import SupervisorContext
    from .loop import Loop
    from .recorder import Recorder

FINISH_S = 40.0
"""Longer than any way may take (`agent.messages.deliver`)."""
STATUS = "status"
COUNT_LOOK_S = 5.0
"""How often it is looked whether so many steps or epochs have passed."""
HISTORY_BYTES = 64 * 1024
TOLD = ("step", "epoch", "phase", "loss", "planned_steps")
MOST_FACTS = 6
LONGEST_FACT = 80
EACH_TIME = frozenset({STATUS, "ended"})
"""Messages of which two of one attempt are never the same."""


class Notifier:
    """Delivers messages beside the loop."""

    def __init__(self, spec: JobSpec, attempt: int, recorder: Recorder, loop: Loop) -> None:
        """Nothing is sent before `send`."""
        self._spec, self._attempt, self._recorder, self._loop = spec, attempt, recorder, loop
        self._under_way: list[tuple[str, Offload]] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """The children that deliver right now: none of the job's."""
        return tuple(work.pid for _, work in self._under_way)

    def send(self, event: str, facts: dict[str, object]) -> None:
        """Tell of `event` by every way; failures are only recorded."""
        notify, channels = self._spec.notify, self._spec.channels
        if not tells_anybody(notify, channels):
            return
        message, key = self._describe(event, facts), self._build_key(event, facts)

        def work() -> object:
            from holdfast.agent.messages.deliver import deliver  # lazy: by this child alone: most runs tell nobody

            hidden = read_known_values(self._spec.secrets)
            return wire.encode(deliver(notify, channels, message, key, hidden=hidden))

        try:
            child = Offload(work)
        except OSError as error:
            self._recorder.event("notified", state=event, problems={"all": str(error)})
            return
        self._under_way.append((event, child))
        self._loop.add(child.fileno(), lambda: self._take(event, child))

    def _describe(self, event: str, facts: dict[str, object]) -> dict[str, object]:
        run_id, run_dir = self._recorder.run_id, self._recorder.run_dir
        place = _read_place(run_dir)
        return {
            "run_id": run_id,
            "attempt": self._attempt,
            "state": event,
            "run_dir": run_dir,
            "at": utc_now(),
            "name": self._spec.name,
            "host": os.uname().nodename,
            "user": user_name(os.geteuid()),
            "place": place,
            "look": f"holdfast show {f'{place}:' if place else ''}{run_id}",
            **facts,
        }

    def _build_key(self, event: str, facts: dict[str, object]) -> str:
        which = f"{self._attempt} {utc_now()}" if event in EACH_TIME else facts.get("class", "")
        return f"{self._recorder.run_id} {event} {facts.get('alert', '')} {which}"

    def _take(self, event: str, work: Offload) -> None:
        if work.is_done():
            self._loop.remove(work.fileno())
            self._settle(event, work, 0.0)

    def _settle(self, event: str, work: Offload, limit_s: float) -> None:
        self._under_way.remove((event, work))
        try:
            answer: dict[str, Any] = work.wait(limit_s, since_start=True)
        except OffloadFailed as error:
            answer = {"problems": {"all": str(error)}}
        told = {"suppressed": answer["suppressed"]} if answer.get("suppressed") else {}
        self._recorder.event("notified", state=event, problems=answer["problems"], **told)

    def finish(self) -> None:
        """Wait for what is under way, `FINISH_S` from its start."""
        for event, work in list(self._under_way):
            self._loop.remove(work.fileno())
            self._settle(event, work, FINISH_S)


def tells_anybody(notify: Notify, channels: Channels) -> bool:
    """Whether a job names any way to people."""
    ways = (channels.slack, channels.discord, channels.ntfy, channels.email)
    return bool(notify.command or notify.webhook or any(ways))


def _read_place(run_dir: str) -> str:
    """What the desk that ordered the run calls this box; empty of one that was typed here."""
    try:
        return str(wire.parse_object(files.read_bytes(f"{run_dir}/{wire.RUN}"), wire.RUN).get("place") or "")
    except (OSError, wire.WireError):
        return ""


class StatusMessages:
    """Tells how far a run is, as often as its job asks for, from `begin` to `end`: while the job runs (MON-22)."""

    def __init__(self, context: SupervisorContext, every: str) -> None:
        """`every` is as in `Channels`."""
        self._context = context
        amount, _, unit = every.partition(" ")
        self._counted = unit.rstrip("s")
        self._amount = float(amount.rstrip("s"))
        self._last: int | None = None

    def begin(self) -> None:
        """Send the status from now on, again and again."""
        if self._counted:
            self._last = self._count()
        self._context.loop.timers.arm(STATUS, COUNT_LOOK_S if self._counted else self._amount, self._look)

    def end(self) -> None:
        """Send it no more."""
        self._context.loop.timers.disarm(STATUS)

    def _look(self) -> None:
        self._context.loop.timers.arm(STATUS, COUNT_LOOK_S if self._counted else self._amount, self._look)
        if self._counted:
            before, self._last = self._last, self._count()
            if self._last is None or self._last <= (before or 0):
                return
        beat = self._context.heartbeat()
        facts = {name: beat[name] for name in TOLD if beat.get(name) is not None}
        self._context.notify(STATUS, **facts, left_s=self._forecast(beat))

    def _count(self) -> int | None:
        """How many times the amount has passed; None where the job tells no such count."""
        value = self._context.heartbeat().get(self._counted)
        return int(value // self._amount) if isinstance(value, (int, float)) else None

    def _forecast(self, beat: dict[str, object]) -> float | None:
        """Seconds left by the pace of the last samples; None where no end is planned or no pace is known."""
        step, planned = beat.get("step"), beat.get("planned_steps")
        if not isinstance(step, (int, float)) or not isinstance(planned, (int, float)):
            return None
        seen: list[tuple[float, float]] = []
        for line in files.read_tail(self._context.recorder.path(wire.HEALTH), HISTORY_BYTES).splitlines():
            try:
                sample = wire.parse_object(line, wire.HEALTH)
                seen.append((parse_utc(sample["utc"]), float(sample["step"])))
            except (ValueError, KeyError, TypeError):
                continue
        if not seen or seen[-1][1] <= seen[0][1] or seen[-1][0] <= seen[0][0]:
            return None
        pace = (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])
        return max(0.0, round((planned - step) / pace, 1))


def say_facts(facts: Mapping[str, object]) -> str:
    """The plain values among an event's facts: ``used 3.1 GiB, limit 4 GiB``."""
    words = []
    for name, value in facts.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name.endswith("_bytes"):
            words.append(f"{name.removesuffix('_bytes').replace('_', ' ')} {format_bytes(int(value))}")
        elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
            words.append(f"{name.replace('_', ' ')} {str(value)[:LONGEST_FACT]}")
    return ", ".join(words[:MOST_FACTS])
