"""How many messages an account's runs on one box may send: none twice in ten minutes, so many an hour. Pure.

A sweep of two hundred jobs that all fail is one thing to a person, not two hundred. The message at the limit says that
it is one, and the first one afterwards how many were left out.
"""

from __future__ import annotations

from holdfast.model.record import record
from holdfast.model.units import format_count

AN_HOUR_S = 3600.0
MOST_AN_HOUR = 30
MOST_URGENT = 60
"""As many in all where one needs a person now: thirty jobs that ended hide no full disk."""
SAME_WITHIN_S = 600.0
SAME = f"the same was told within {SAME_WITHIN_S / 60:.0f} minutes"


@record
class SentMessages:
    """What was sent within the last hour: epoch seconds and key of each; and how many were left out since the last."""

    sent: tuple[tuple[float, str], ...] = ()
    suppressed: int = 0


@record
class Admission:
    """Whether a message goes out; `words` say why not, or what goes out with it; empty when there is nothing to say.

    `suppressed` is how many were left out before it, which it says.
    """

    send: bool
    words: str = ""
    suppressed: int = 0


def admit(before: SentMessages, key: str, now: float, *, urgent: bool = False) -> tuple[SentMessages, Admission]:
    """Judge one message; what was sent then. A clock that was set back forgets what lies ahead of it."""
    recent = tuple((at, known) for at, known in before.sent if 0 <= now - at < AN_HOUR_S)
    if any(known == key and now - at < SAME_WITHIN_S for at, known in recent):
        kept = SentMessages(recent, before.suppressed)
        return kept, Admission(send=False, words=SAME)
    most = MOST_URGENT if urgent else MOST_AN_HOUR
    if len(recent) >= most:
        words = f"{format_count(most, 'message was', 'messages were')} sent within the hour"
        return SentMessages(recent, before.suppressed + 1), Admission(send=False, words=words)
    words = f"{before.suppressed} more suppressed since the last message" if before.suppressed else ""
    if len(recent) + 1 == most:
        limit = f"this is message {most} of this hour from here; more are left out until it is over: holdfast ls"
        words = "; ".join(filter(None, (words, limit)))
    return SentMessages((*recent, (now, key)), 0), Admission(send=True, words=words, suppressed=before.suppressed)


def withdraw(before: SentMessages, key: str, admission: Admission) -> SentMessages:
    """What was sent, without the message of this key that nobody has taken, and what it said was left out before it."""
    places = [place for place, (_, known) in enumerate(before.sent) if known == key]
    sent = tuple(item for place, item in enumerate(before.sent) if place not in places[-1:])
    return SentMessages(sent, before.suppressed + admission.suppressed)
