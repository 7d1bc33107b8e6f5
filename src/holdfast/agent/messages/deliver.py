"""Deliver one message by every way that a job names, all at the same time. It waits: for a child of whoever tells.

What goes wrong is the answer, in words without an address, and never a reason for anything else to change (OBS-16).
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from holdfast.core.control_characters import one_line
from holdfast.core.job.secret_names import to_variable
from holdfast.core.messages.admission import Admission
from holdfast.core.messages.channels import COMMAND, EMAIL, SECRET, hide_addresses, list_targets
from holdfast.core.messages.payloads import ALARMS, build_json, build_payload
from holdfast.core.messages.text import describe
from holdfast.host.files.secret_files import SecretUnusableError, read_secret
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model.record import record

from .admit import admit_message, withdraw_message
from .hook import COMMAND_LIMIT_S, run_hook
from .mail import send_mail
from .problem import NotDelivered, describe_error
from .web import post

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.core.messages.channels import Target
    from holdfast.model.job import Channels, Notify

CHANNEL_LIMIT_S = COMMAND_LIMIT_S + 10.0
"""Within which all have taken the message, or are given up; most have shorter limits of their own."""
LIMIT_S = CHANNEL_LIMIT_S + 5.0
AGAIN_AFTER_S = 1.0
MOST_PAUSE_S = 8.0
"""Who asks for more is not asked again: the limits of two tries and the pause fit into that of the channel."""
LONGEST_PROBLEM = 200


@record
class Delivery:
    """What became of a message: for each way what went wrong, None where nothing did; or why it went nowhere."""

    problems: dict[str, str | None]
    suppressed: str = ""


def deliver(
    notify: Notify,
    channels: Channels,
    facts: Mapping[str, object],
    key: str = "",
    *,
    hidden: tuple[str, ...] = (),
) -> Delivery:
    """Tell everybody; `key` is what makes two messages the same, empty for one that goes out in any case.

    Values that are `hidden` are in no message.
    """
    admission = Admission(send=True)
    if key:
        admission = admit_message(key, urgent=facts.get("state") in ALARMS)
        if not admission.send:
            return Delivery({}, admission.words)
        facts = {**facts, "suppressed": admission.words} if admission.words else facts
    targets = list_targets(notify, channels)
    if sys.platform != "linux":
        return Delivery({target.label: send_to(target, notify, channels, facts, hidden) for target in targets})
    under_way: list[tuple[str, Offload | OSError]] = []
    for target in targets:
        try:
            under_way.append((target.label, Offload(partial(send_to, target, notify, channels, facts, hidden))))
        except OSError as error:
            under_way.append((target.label, error))
    problems = {label: _await(work) for label, work in under_way}
    if key and problems and all(problems.values()):
        withdraw_message(key, admission)
    return Delivery(problems)


def _await(work: Offload | OSError) -> str | None:
    if isinstance(work, OSError):
        return str(work)
    try:
        problem: str | None = work.wait(CHANNEL_LIMIT_S, since_start=True)
    except OffloadFailed as error:
        return hide_addresses(str(error))
    return problem


def send_to(
    target: Target, notify: Notify, channels: Channels, facts: Mapping[str, object], hidden: tuple[str, ...] = ()
) -> str | None:
    """Tell one address; what went wrong, or None. A refusal that may pass is tried once more."""
    secrets: list[str] = list(hidden)

    def resolve(text: str) -> str:
        if not text.startswith(SECRET):
            return text
        value = to_variable(read_secret(text.removeprefix(SECRET))).decode("utf-8", "replace").strip()
        secrets.append(value)
        return value

    def hand_over() -> None:
        password = resolve(channels.smtp_password) if target.channel == EMAIL and channels.smtp_password else None
        address = resolve(target.address)
        text = describe(facts, secrets)
        if target.channel == COMMAND:
            run_hook(notify.command, build_json(facts, text, secrets))
        elif target.channel == EMAIL:
            send_mail(channels, address, text, password)
        else:
            post(address, build_payload(target.channel, facts, text, secrets))

    try:
        try:
            hand_over()
        except (ConnectionError, NotDelivered) as error:
            if isinstance(error, NotDelivered) and not error.passing:
                raise
            pause_s = AGAIN_AFTER_S if isinstance(error, OSError) else max(AGAIN_AFTER_S, error.after_s)
            if pause_s > MOST_PAUSE_S:
                raise
            time.sleep(pause_s)
            hand_over()
    except SecretUnusableError as error:
        return f"{error}; holdfast secret push PLACE {error.name} (`local` is this machine)"
    except (OSError, ValueError, NotDelivered) as error:
        words = describe_error(error)
        for value in secrets:
            words = words.replace(value, "[redacted]")
        return one_line(hide_addresses(words), LONGEST_PROBLEM)
    return None
