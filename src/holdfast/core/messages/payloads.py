"""What each channel is sent for a message, in its own form, so that nothing of the text is taken for markup.

Sources: docs.slack.dev/messaging/formatting-message-text ("Escaping text", ``mrkdwn``), discord.com/developers/docs
(Execute Webhook: ``allowed_mentions``, 2,000 characters, taken for UTF-16 units here, flag ``SUPPRESS_EMBEDS``),
docs.ntfy.sh/publish (headers ``Title`` as RFC 2047, ``Priority``; a message above 4,096 bytes becomes an attachment);
read in November 2026.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.core.control_characters import clean
from holdfast.core.job.redact import REDACTED, is_secret_value, redact_text
from holdfast.model.pattern import compile_later
from holdfast.model.record import record

from .channels import DISCORD, NTFY, SLACK
from .text import MessageText, remove_hidden

ALARMS = frozenset({"alert", "stalled", "patrol"})
"""States of a message that somebody is needed for now, while there is something to save."""

_SUPPRESS_EMBEDS = 4
MOST_DISCORD = 2000
MOST_NTFY_BYTES = 4000
MOST_WEBHOOK_BYTES = 32 * 1024
_LONGEST_FACTS = (2000, 200, 40)
"""Characters of one fact for a webhook: the first of these with which all is within bounds."""
_MOST_ITEMS = 20
_LONGEST_KEY = 80
_DEEPEST = 4
_MENTION = "@\u200b"
"""An at sign that begins no mention: with a space of no width behind it."""
_BACKTICK = "\u02cb"
"""A letter that looks like a backtick, and ends no block of code."""
_ADDRESSED = compile_later(r"@(?=everyone|here|channel|all\b|room\b)|<(?=[@!#&])|\](?=\()", re.IGNORECASE)
"""What begins a mention or the address of a link in a chat that gets a fact as it is."""


@record
class Payload:
    """The body of a POST, and its headers."""

    body: bytes
    headers: dict[str, str]


def build_json(facts: Mapping[str, object], text: MessageText, hidden: Iterable[str] = ()) -> bytes:
    """The message for a program of the user's, without the values `hidden`."""
    return json.dumps({"schema": 1, **_clean(facts, tuple(hidden)), "text": str(text)}).encode()


def build_payload(channel: str, facts: Mapping[str, object], text: MessageText, hidden: Iterable[str] = ()) -> Payload:
    """What a channel's address gets by POST; `hidden` is as of `build_json`."""
    if channel == SLACK:
        words = str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", _MENTION)
        # Mattermost takes it too, and has links in Markdown.
        words = words.replace("](", "]\u200b(")
        quiet = {"mrkdwn": False, "link_names": False, "unfurl_links": False, "unfurl_media": False}
        return _json({"text": words, **quiet})
    if channel == DISCORD:

        def write(words: str) -> str:
            return "```\n{}\n```".format(words.replace("`", _BACKTICK).replace("@", _MENTION))

        fitting = text.shorten(MOST_DISCORD, lambda words: len(write(words).encode("utf-16-le")) // 2)
        return _json({"content": write(str(fitting)), "allowed_mentions": {"parse": []}, "flags": _SUPPRESS_EMBEDS})
    if channel == NTFY:
        body = "\n".join(text.shorten(MOST_NTFY_BYTES, lambda words: len(words.encode())).lines).encode()
        title = base64.b64encode(text.title.encode()).decode("ascii")
        headers = {"Content-Type": "text/plain; charset=utf-8", "Title": f"=?UTF-8?B?{title}?="}
        return Payload(body, {**headers, "Priority": "high"} if _is_urgent(facts) else headers)
    # It may be handed on to a chat as it is.
    words = str(text).replace("@", _MENTION).replace("<!", "<\u200b!").replace("](", "]\u200b(")
    for longest in _LONGEST_FACTS:
        payload = _json({"schema": 1, **_bound(facts, tuple(hidden), longest), "text": words})
        if len(payload.body) <= MOST_WEBHOOK_BYTES:
            return payload
    return _json({"schema": 1, "text": words})


def _bound(value: Any, hidden: tuple[str, ...], longest: int, depth: int = 0) -> Any:  # noqa: ANN401 - any JSON value
    """As `_clean`, with few parts and short texts, in which nothing steers a terminal or calls somebody in a chat."""
    if isinstance(value, str):
        words = clean(_redact(value[: 20 * longest], hidden))
        return _ADDRESSED.sub(
            lambda found: f"{found[0]}\u200b", f"{words[:longest]}..." if len(words) > longest else words
        )
    if depth >= _DEEPEST and isinstance(value, (Mapping, list, tuple)):
        return None
    if isinstance(value, Mapping):
        parts = list(value.items())[: 2 * _MOST_ITEMS]
        return {
            clean(_redact(str(key)[: 20 * _LONGEST_KEY], hidden))[:_LONGEST_KEY]: _hide(key, item)
            or _bound(item, hidden, longest, depth + 1)
            for key, item in parts
        }
    if isinstance(value, (list, tuple)):
        return [_bound(item, hidden, longest, depth + 1) for item in value[:_MOST_ITEMS]]
    return value


def _clean(value: Any, hidden: tuple[str, ...]) -> Any:  # noqa: ANN401 - any JSON value
    """The value without what looks like a secret, or is one; so its keys, which may be a job's own words."""
    if isinstance(value, str):
        return _redact(value, hidden)
    if isinstance(value, Mapping):
        return {_redact(str(key), hidden): _hide(key, item) or _clean(item, hidden) for key, item in value.items()}
    return [_clean(item, hidden) for item in value] if isinstance(value, (list, tuple)) else value


def _redact(text: str, hidden: tuple[str, ...]) -> str:
    # What is hidden goes first: in the middle of a secret it would hide that, too.
    return redact_text(remove_hidden(text), hidden)


def _hide(key: object, value: object) -> str:
    """What stands for a text that is a secret by the name of its key; else empty."""
    return REDACTED if isinstance(value, str) and is_secret_value(value, str(key)) else ""


def _is_urgent(facts: Mapping[str, object]) -> bool:
    return facts.get("outcome") not in {None, "succeeded"} or facts.get("state") in ALARMS


def _json(content: dict[str, object]) -> Payload:
    return Payload(json.dumps(content).encode(), {"Content-Type": "application/json"})
