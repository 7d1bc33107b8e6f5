"""The ways to people that a job names, and what may be written as their addresses.

An address that is a secret itself stands nowhere but in a file of the box: ``secret:NAME`` says which.
"""

from __future__ import annotations

from holdfast.core.job.redact import redact_text
from holdfast.core.job.secret_names import check_secret_name
from holdfast.model.job import Channels, Notify
from holdfast.model.pattern import compile_later
from holdfast.model.record import record
from holdfast.model.units import parse_duration

SECRET = "secret:"  # noqa: S105 - what stands before the name of one
COMMAND, WEBHOOK, SLACK, DISCORD, NTFY, EMAIL = "command", "webhook", "slack", "discord", "ntfy", "email"
LEAST_EVERY_S = 1.0
_URL = compile_later(r"https?://[!-.0-?A-~]+(/[!-~]*)?")
"""Printable ASCII, a host without a user before it."""
_PARTS = compile_later(r"(https?)://(\[[0-9A-Fa-f:.]+\]|[^/:?#]+)(?::(\d{1,5}))?(?:[/?#]|$)")
_MAIL = compile_later(r"[A-Za-z0-9._%+][A-Za-z0-9._%+-]*@[A-Za-z0-9][A-Za-z0-9.-]*")
_SERVER = compile_later(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?::(\d{1,5}))?")
_RHYTHM = compile_later(r"(\d{1,15})(?:\s*(step|epoch)s?)?")
_LINK = compile_later(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>)]+")
LARGEST_PORT = 65535


@record
class Target:
    """One address of one channel; `label` is what it is called where people are told: no address is in it."""

    channel: str
    address: str
    label: str


def list_targets(notify: Notify, channels: Channels) -> tuple[Target, ...]:
    """Everybody who is told, the command first."""
    hooks = notify.webhook if isinstance(notify.webhook, tuple) else (notify.webhook,) if notify.webhook else ()
    found = [Target(COMMAND, "", COMMAND)] if notify.command else []
    stated = {WEBHOOK: hooks, SLACK: channels.slack, DISCORD: channels.discord, NTFY: channels.ntfy}
    for channel, addresses in {**stated, EMAIL: channels.email}.items():
        for number, address in enumerate(addresses, 1):
            found.append(Target(channel, address, channel if len(addresses) == 1 else f"{channel} {number}"))
    return tuple(found)


def list_secrets(notify: Notify, channels: Channels) -> tuple[str, ...]:
    """The names of the secrets that the addresses and the mail server's password are."""
    texts = [target.address for target in list_targets(notify, channels)]
    texts.append(channels.smtp_password or "")
    return tuple(dict.fromkeys(text.removeprefix(SECRET) for text in texts if text.startswith(SECRET)))


def is_url(text: str) -> bool:
    """Whether this is an address of the web without a user or password before its host."""
    return _URL.fullmatch(text) is not None


def split_url(text: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of an address of the web; None for any other text."""
    found = _PARTS.match(text) if is_url(text) else None
    if found is None:
        return None
    scheme, host, port = found[1], found[2].strip("[]"), found[3]
    return scheme, host, int(port) if port else (443 if scheme == "https" else 80)


def read_address(text: str) -> str:
    """A URL, or ``secret:NAME``.

    Raises:
        ValueError: it is neither, or a secret itself; the message has nothing of it.
    """
    if text.startswith(SECRET):
        return read_secret(text)
    if not is_url(text):
        raise ValueError(
            "expected a URL that begins with https:// or http://, without a user or password in it, or secret:NAME"
        )
    if redact_text(text) != text:
        raise ValueError(
            "is an address that is a secret, and jobs are recorded; give it to the box once: holdfast secret push "
            "PLACE NAME (`local` is this machine), and write secret:NAME"
        )
    return text


def read_secret(text: str) -> str:
    """``secret:NAME``.

    Raises:
        ValueError: it is not.
    """
    name = text.removeprefix(SECRET)
    if name == text:
        # What stands there may be the value itself.
        raise ValueError("expected secret:NAME, the name of a secret of the box; a value is never written here")
    if problem := check_secret_name(name):
        raise ValueError(problem)
    return text


def read_mail(text: str) -> str:
    """A mail address.

    Raises:
        ValueError: it is none.
    """
    if not _MAIL.fullmatch(text):
        raise ValueError(f"{text[:60]!r} is no mail address like me@example.org")
    return text


def read_server(text: str) -> tuple[str, int | None]:
    """Host and port of a mail server.

    Raises:
        ValueError: it is none.
    """
    found = _SERVER.fullmatch(text)
    port = int(found[2]) if found and found[2] else None
    if found is None or (port is not None and not 1 <= port <= LARGEST_PORT):
        raise ValueError(f"{text[:60]!r} is no mail server like mail.example.org or mail.example.org:587")
    return found[1], port


def read_rhythm(text: str) -> str:
    """How often: ``21600s``, ``500 steps`` or ``2 epochs``, of what a person wrote.

    Raises:
        ValueError: it is too often, or none of these; the message is empty then.
    """
    text = text.strip().lower()
    counted = _RHYTHM.fullmatch(text)
    if counted is not None:
        if int(counted[1]) == 0:
            raise ValueError("every 0 steps is no rhythm; the least is 1")
        return f"{int(counted[1])} {counted[2] or 'step'}s"
    try:
        seconds = parse_duration(text)
    except ValueError:
        raise ValueError from None
    if seconds < LEAST_EVERY_S:
        raise ValueError(f"{text} is too often; the least is {LEAST_EVERY_S:g}s")
    return f"{seconds:.10g}s"


def hide_addresses(text: str) -> str:
    """`text` without secrets and without anything that looks like a link: an address may be one."""
    return _LINK.sub("[address]", redact_text(text))
