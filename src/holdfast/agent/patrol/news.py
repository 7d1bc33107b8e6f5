"""What of a look is news to people, and telling it at least once: it counts as told when a channel has taken it.

Nothing is kept for later: what was not told is news of the next look still, if it is so then. Between tries there is a
pause that grows, and after some there is none until there is other news; the patrol and `show` say so meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.agent.messages.tries import Undelivered, describe_untold, is_due
from holdfast.core.digest import sha256_hex
from holdfast.core.job.redact import redact_text
from holdfast.host import clock
from holdfast.model.errors import HoldfastError
from holdfast.model.record import field, record
from holdfast.model.units import format_count

from . import memory, patrol
from .memory import PatrolMemory
from .tell import Ways, tell
from .tick import ObservedRun, PatrolResult

MOST = 5
"""So many runs are named in a message: it must fit into a pipe at once."""
MOST_BESIDES = 3
LONGEST = 250
MOST_KEPT = 100


@record
class Recalled:
    """A look against what was told before, by the memory in a directory `below`.

    `besides` is what needs a person beside its runs and what it could not see: a name of its own, and words.
    """

    tick: PatrolResult
    before: PatrolMemory
    below: str = ""
    besides: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """What is so besides the runs, by name."""
        return tuple(dict.fromkeys((*(text.partition(":")[0] for text in self.tick.blind), *self.besides)))

    @property
    def runs(self) -> tuple[ObservedRun, ...]:
        """The runs that are news."""
        return tuple(seen for seen in self.tick.escalations if seen.news)

    @property
    def key(self) -> str:
        """What tells its news from others; empty without any."""
        parts = [f"{seen.run_dir} {seen.told}" for seen in self.runs]
        parts += [name for name in self.names if name not in self.before.besides]
        return sha256_hex("\0".join(parts).encode("utf-8", "replace")) if parts else ""

    @property
    def tries(self) -> int:
        """How often this news was tried in vain."""
        return self.before.untold.tries if self.before.untold and self.before.untold.key == self.key else 0

    def is_due(self, now: float) -> bool:
        """Whether there is news to try now."""
        return bool(self.key) and is_due(self.before.untold, self.key, now)


def recall(tick: PatrolResult, below: str = "", besides: dict[str, str] | None = None) -> Recalled:
    """The look against what was told before."""
    before = memory.load_memory(below)
    return Recalled(patrol.compare_with_memory(tick, before), before, below, besides or {})


def tell_news(looks: Sequence[Recalled], whole: PatrolResult, ways: Ways) -> list[str]:
    """Tell the news of these looks, `whole` together, and remember it where somebody took it; what went wrong."""
    now = clock.epoch_s()
    notes: list[str] = []
    problem, taken = "", False
    due = any(look.is_due(now) for look in looks)
    if due:
        problem, taken = _tell(looks, whole, ways)
    if problem and taken:
        notes.append(f"not everybody was told: {problem}")
    for look in looks:
        untold = None
        if look.key and not taken:
            known = look.before.untold
            run_dirs = tuple(seen.run_dir for seen in look.runs[:MOST_KEPT])
            untold = Undelivered(look.key, look.tries + 1, now, problem, run_dirs) if due else known
        notes += remember(look, untold)
        if untold is not None and (words := describe_untold(untold, now)) not in notes:
            notes.append(words)
    return notes


def tell_all(whole: PatrolResult, besides: dict[str, str], ways: Ways) -> list[str]:
    """Tell of all that needs a person, whatever was told before; what went wrong."""
    look = Recalled(whole, PatrolMemory(), besides=besides)
    problem, taken = _tell([look], whole, ways) if look.key else ("", True)
    return [f"{'not everybody' if taken else 'nobody'} was told: {problem}"] if problem else []


def remember(look: Recalled, untold: Undelivered | None = None) -> list[str]:
    """Keep what was told; with `untold` the news was not. What went wrong."""
    names = tuple(name for name in look.names if untold is None or name in look.before.besides)
    try:
        memory.save_memory(look.tick, look.before, look.below, besides=names, untold=untold)
    except (HoldfastError, OSError) as error:
        return [f"what was told cannot be remembered ({error}); the next patrol tells it again"]
    return []


def say_untold(before: PatrolMemory) -> list[str]:
    """A sentence on what earlier patrols could not tell anybody; none where all was told."""
    return [describe_untold(before.untold, clock.epoch_s())] if before.untold is not None else []


def _tell(looks: Sequence[Recalled], whole: PatrolResult, ways: Ways) -> tuple[str, bool]:
    """Send one message of all; what went wrong, and whether anybody has taken it."""
    besides = sorted((name in look.before.besides, text) for look in looks for name, text in look.besides.items())
    needing = sorted(whole.escalations, key=lambda seen: not seen.news)
    left_out = len(needing) - MOST
    more = format_count(left_out, "more run needs a person", "more runs need a person")
    message = {
        "event": "patrol",
        "state": "patrol",
        "look": "holdfast patrol",
        "at": whole.at,
        "host": whole.host,
        "summary": whole.summary,
        "blind": [redact_text(text)[:LONGEST] for text in whole.blind[:MOST_BESIDES]],
        "besides": [redact_text(text)[:LONGEST] for _, text in besides[:MOST_BESIDES]],
        "runs": [_brief(seen) for seen in needing[:MOST]],
        **({"suppressed": more} if left_out > 0 else {}),
    }
    done = tell(ways, message)
    return done.problem, done.taken


def _brief(seen: ObservedRun) -> dict[str, str]:
    """A run in a message: short, and without what looks like a secret."""
    lines = [line for line in (seen.judgement.ending, *seen.judgement.alarms) if line.escalate]
    return {
        "run_id": seen.run_id,
        "standing": seen.standing.value,
        "text": redact_text("; ".join(line.text for line in lines))[:LONGEST],
        "action": lines[0].action[:LONGEST],
    }
