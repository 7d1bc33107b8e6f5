"""What a message says, in words for people: one title and a few lines, whatever the channel.

Much of it is text of strangers (a job's log, a file name), so each value becomes one short line without anything that
steers a terminal or hides, and without what looks like a secret. What a channel would take for markup is its own part
(`payloads`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.core.control_characters import one_line
from holdfast.core.job.redact import redact_text
from holdfast.model.record import record
from holdfast.model.units import format_duration

MOST_TEXT = 1500
"""Characters of title and lines together."""
LONGEST_TITLE = 120
LONGEST_LINE = 280
LONGEST_NAME = 80
ENDS = 2
"""The last lines of a message: where it is, and how to look."""
_HIDDEN = dict.fromkeys(
    [
        *(0x00AD, 0x034F, 0x061C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFEFF, 0xFFA0),
        *(*range(0x180B, 0x1810), *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070)),
        *(*range(0xFFF0, 0xFFFC), *range(0xE0000, 0xE1000)),
    ],
    None,
)
"""Characters without a width, and those that turn the direction of text. Source: Unicode 16, Default_Ignorable."""
_EVENTS = {
    "stalled": "makes no progress",
    "alert": "needs a look",
    "memory_high": "is at its memory limit",
    "install": "installs packages",
    "lease_record_stale": "has a stale lease record",
}
_LINES = (
    ("cause", "cause"),
    ("reason", "seen"),
    ("doubt", "doubt"),
    ("why", "why"),
    ("action", "do"),
    ("suppressed", "besides"),
)
"""Fact to the label of its line, in their order."""


@record
class MessageText:
    """A title, and lines of text below it."""

    title: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        """All of it, `MOST_TEXT` characters at most."""
        return "\n".join((self.title, *self.lines))

    def shorten(self, most: int, measure: Callable[[str], int]) -> MessageText:
        """As many lines as have room; where it is and how to look stay as long as they can."""
        lines = list(self.lines)
        while lines and measure(str(MessageText(self.title, tuple(lines)))) > most:
            lines.pop(-3 if len(lines) >= ENDS + 1 else -1)
        return MessageText(self.title, tuple(lines))


def describe(facts: Mapping[str, object], hidden: Iterable[str] = ()) -> MessageText:
    """The words for a message; `hidden` are values that must not be in it.

    Of `facts` it knows: `state` (what happened), `name`, `run_id`, `attempt`, `host`, `place`, `user`, `outcome`,
    `exit_code`, `class`, `confidence`, `cause`, `action`, `reason`, `doubt`, `why`, `alert`, `step`, `planned_steps`,
    `loss`, `left_s`, `epoch`, `summary`, `blind`, `runs` and `look`, the command to look with.
    """
    secrets = tuple(hidden)

    def say(value: object, longest: int) -> str:
        return _harmless(value, longest, secrets)

    lines = [f"{label}: {words}" for key, label in _LINES if (words := say(facts.get(key), LONGEST_LINE))]
    ends = [line for line in (_say_where(facts, say), _say_look(facts, say)) if line]
    title = say(_entitle(facts), LONGEST_TITLE)
    room = MOST_TEXT - len(title) - sum(len(line) + 1 for line in ends)
    kept = []
    for line in (*lines, *_list_runs(facts, say)):
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return MessageText(title, (*kept, *ends))


def remove_hidden(text: str) -> str:
    """`text` without what nobody sees in it."""
    return text.translate(_HIDDEN)


def _harmless(value: object, longest: int, secrets: tuple[str, ...]) -> str:
    if value is None or value == "":
        return ""
    # What is hidden goes first: in the middle of a secret it would hide that, too.
    words = redact_text(remove_hidden(str(value)[: 20 * longest]), secrets)
    line = one_line(words, longest)
    return f"{line[: longest - 3]}..." if len(line) > longest or len(" ".join(words.split())) > longest else line


def _entitle(facts: Mapping[str, object]) -> str:
    """What happened to whom."""
    state, name = (
        str(facts.get("state", "")),
        str(facts.get("name") or facts.get("run_id") or "holdfast")[:LONGEST_NAME],
    )
    if state == "ended":
        kind = f" ({facts['class']})" if facts.get("class") else ""
        doubt = " in doubt" if facts.get("doubt") else ""
        return f"{name} {str(facts.get('outcome', 'ended')).replace('_', ' ')}{doubt}{kind}"
    if state == "status":
        return f"{name} runs: {_say_progress(facts)}"
    if state in {"patrol", "group", "test"}:
        return str(facts.get("summary") or "holdfast")
    kind = f" ({facts['class']})" if facts.get("class") else ""
    return f"{name} {_EVENTS.get(state, state.replace('_', ' '))}{kind}"


def _say_progress(facts: Mapping[str, object]) -> str:
    step, planned, loss, left = (facts.get(key) for key in ("step", "planned_steps", "loss", "left_s"))
    words = []
    if isinstance(step, (int, float)):
        share = ""
        if isinstance(planned, (int, float)) and planned > 0:
            share = f" of {planned:g} ({100 * step / planned:.0f} %)"
        words.append(f"step {step:g}{share}")
    if isinstance(facts.get("epoch"), (int, float)):
        words.append(f"epoch {facts['epoch']:g}")
    if isinstance(loss, (int, float)):
        words.append(f"loss {loss:.4g}")
    if isinstance(left, (int, float)):
        words.append(f"about {format_duration(left)} left")
    return ", ".join(words) or "no step is known"


def _say_where(facts: Mapping[str, object], say: Saying) -> str:
    host, place, run_id = (say(facts.get(key), LONGEST_NAME) for key in ("host", "place", "run_id"))
    attempt = facts.get("attempt")
    which = f"{run_id}, attempt {attempt}" if run_id and isinstance(attempt, int) and attempt > 1 else run_id
    where = f"{host} ({place})" if host and place else host
    return ", ".join(filter(None, (f"on {where}" if where else "", which)))


def _say_look(facts: Mapping[str, object], say: Saying) -> str:
    look = say(facts.get("look"), LONGEST_TITLE)
    return f"look: {look}" if look else ""


def _list_runs(facts: Mapping[str, object], say: Saying) -> list[str]:
    """The runs of a patrol that need a person, what could not be looked at, and what else needs one."""
    runs = facts.get("runs")
    lines = [
        f"{say(item.get('run_id'), LONGEST_NAME)}: {say(item.get('text'), LONGEST_LINE - LONGEST_NAME)}"
        for item in (runs if isinstance(runs, (list, tuple)) else ())
        if isinstance(item, Mapping)
    ]
    for key, label in (("blind", "not seen"), ("besides", "also")):
        texts = facts.get(key)
        lines += [f"{label}: {say(text, LONGEST_LINE)}" for text in (texts if isinstance(texts, (list, tuple)) else ())]
    return lines


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Saying = Callable[[object, int], str]
