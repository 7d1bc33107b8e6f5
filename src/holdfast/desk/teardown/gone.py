"""Whether a machine is gone, by its provider's own word: a status command of the user's, or a status page.

Only a 404 (or 410) or a terminal state is gone. A 500, a refusal, a hang are "could not be told", and so is a machine
that ssh does not reach: nothing is asked over ssh. A provider may need a while, so it is asked again until a limit.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from holdfast.core.control_characters import clean
from holdfast.host.clock import utc_now
from holdfast.model.errors import PreflightFailed
from holdfast.model.place import LOCAL, Place, Rent
from holdfast.model.record import record
from holdfast.model.teardown import Approval, GoneCheck

from .last_check import GONE, STOPPED, THERE, UNKNOWN, keep_check
from .plan import name_machine

ASK_S = 15.0
PAUSE_S = 5.0
MOST_BYTES = 256 << 10
LONGEST_SEEN = 300
NOT_FOUND = frozenset({404, 410})
CLOSED = frozenset({401, 403})
ENDED_WORDS = frozenset({"terminated", "deleted", "destroyed", "released", "removed", "gone"})
STOPPED_WORDS = frozenset({"stopped", "exited", "off", "shutdown", "inactive"})
AT_WORK = frozenset(
    {"running", "active", "ready", "on", "booting", "starting", "loading", "created", "terminating", "stopping"}
)
ANSWERED = frozenset({"ok", "success", "succeeded", "true", "done", "complete", "completed"})
"""Of the answer itself, not of the machine."""
STATE_KEYS = frozenset(
    {"status", "state", "desiredstatus", "actual_status", "cur_state", "intended_status", "instance_status"}
)
"""Names under which providers answer a machine's state, in lower case.

Source: RunPod REST API (`desiredStatus`), vast.ai show instance (`actual_status`, `cur_state`), Lambda Cloud API
(`status`), Paperspace API (`state`), as their pages were in 2026.
"""
_MACHINE = "(?:instance|machine|pod|server|vm|notebook|container|resource|contract)"
ABSENT = re.compile(
    rf"\b(?:no such {_MACHINE}\b|{_MACHINE}\b[^\n]{{0,80}}\b(?:not[ _-]?found|does not exist)|404 not[ _-]found)\b",
    re.IGNORECASE,
)
_OTHER_ABSENT = re.compile(
    r"\b(?:command|executable|file|module|host|name|domain|key|token|config\w*|profile|image)\b"
    r"[^\n]{0,30}\bnot[ _-]?found\b",
    re.IGNORECASE,
)
"""A host or a command that is not found is no machine that is gone."""
SHELL_REFUSED = frozenset({126, 127})
LONGEST_WORD = 300
"""An error in words is no longer; behind it may be a list with anything in it."""
_BARE = re.compile(r"(?:(?:status|state)\s*[:=]\s*)?[\"']?([A-Za-z_]+)[\"']?\Z", re.IGNORECASE)


@record
class Word:
    """What one question came to: a `state` of `GoneCheck`, and what was `seen`, in words."""

    state: str
    seen: str


def check_gone(
    place: Place,
    act: Approval | None,
    limit_s: float,
    *,
    tell: Callable[[str], None] = lambda _: None,
    pause_s: float = PAUSE_S,
) -> GoneCheck:
    """Ask until the machine is gone (after an act that only stops it: stopped) or `limit_s` is over; recorded.

    `act` is what was approved last of it; None: nothing is known to have been.

    Raises:
        PreflightFailed: no one can be asked.
        StorageError: the answer cannot be kept.
    """
    rent = place.rent
    if place.name == LOCAL:
        raise PreflightFailed("this machine has no meter: there is nothing to stop, and nothing to be gone")
    if rent is None or not (rent.status_command or rent.status_url):
        raise PreflightFailed(
            f"whether {place.name} is gone cannot be told: it has no status_command and no status_url, and a machine "
            "that ssh does not reach is not gone",
            hint=f"set one in [{place.name}.rent] of places.toml; or look at the provider's page, then: "
            f"holdfast place rm {place.name}",
        )
    end, told, expected = time.monotonic() + limit_s, "", list_expected(act)
    word = ask_status(rent)
    while word.state not in expected and (left_s := end - time.monotonic()) > 0:
        if word.seen != told:
            tell(f"{place.name}: {word.seen}; asked again for {left_s:.0f} s")
            told = word.seen
        time.sleep(min(pause_s, left_s))
        word = ask_status(rent)
    found = GoneCheck(utc_now(), "" if act is None else act.verb, word.state, word.seen, name_machine(place))
    keep_check(place, found)
    return found


def list_expected(act: Approval | None) -> frozenset[str]:
    """The states that an act leads to, by what the profile said of it when it was approved; its name says nothing.

    What is final and ends the meter leaves no machine behind. What can be taken back, or bills on, leaves one that is
    stopped. An act of which nothing is known counts as the former.
    """
    stays = act is not None and (not act.irreversible or act.stops_meter is False)
    return frozenset({GONE, STOPPED} if stays else {GONE})


def ask_status(rent: Rent) -> Word:
    """Ask once, for at most `ASK_S`."""
    return _ask_command(rent.status_command) if rent.status_command else _ask_url(rent.status_url)


def _ask_command(words: tuple[str, ...]) -> Word:
    """One run of the user's own command; it and what it started are ended at the limit."""
    try:
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        return Word(UNKNOWN, f"{words[0]} cannot be started: {error.strerror}")
    try:
        out, _ = child.communicate(timeout=ASK_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # what left its group may hold its output for long
            child.communicate(timeout=PAUSE_S / 10)
        return Word(UNKNOWN, f"{words[0]} gave no answer within {ASK_S:g} s")
    text = out[:MOST_BYTES].decode("utf-8", "replace")
    if len(text) <= LONGEST_WORD and child.returncode not in SHELL_REFUSED and _names_absence(text):
        return Word(GONE, f"{words[0]}: {_shorten(text)}")
    if child.returncode:
        return Word(UNKNOWN, f"{words[0]} ended with {child.returncode}: {_shorten(text)}")
    return read_state(text)


def _names_absence(text: str) -> bool:
    return ABSENT.search(text) is not None and _OTHER_ABSENT.search(text) is None


def _ask_url(url: str) -> Word:
    """One request, without the proxies of the environment, and without following another address."""
    kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    try:
        parts = urlsplit(url)
        link = kinds[parts.scheme](parts.netloc.rpartition("@")[2], timeout=ASK_S)
    except (ValueError, KeyError, http.client.InvalidURL):
        return Word(UNKNOWN, "status_url is no http or https address")
    late = threading.Event()
    timer = threading.Timer(0, lambda: None)
    try:
        link.connect()
        timer = threading.Timer(ASK_S, _cut, (link.sock, late))  # the limit of a socket is one of each piece
        timer.daemon = True
        timer.start()
        link.request("GET", parts._replace(scheme="", netloc="", fragment="").geturl() or "/")
        answer = link.getresponse()
        if answer.status != http.HTTPStatus.OK:
            words = f"the status page answers {answer.status}"
            if answer.status in CLOSED:
                words += "; what needs a password is asked by a status_command, which reads its own"
            return Word(GONE if answer.status in NOT_FOUND else UNKNOWN, words)
        text = answer.read(MOST_BYTES).decode("utf-8", "replace")
        return _late() if late.is_set() else read_state(text)
    except (OSError, ValueError, http.client.HTTPException) as error:
        if late.is_set() or isinstance(error, TimeoutError):
            return _late()
        return Word(UNKNOWN, f"the status page gave no answer: {_shorten(str(error))}")
    finally:
        timer.cancel()
        link.close()


def _late() -> Word:
    return Word(UNKNOWN, f"the status page gave no whole answer within {ASK_S:g} s")


def _cut(link: socket.socket, late: threading.Event) -> None:
    late.set()
    with suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)


def read_state(text: str) -> Word:
    """What an answer says under names that providers use, or as a bare word. All that is said must agree to be gone.

    A state that is not known here agrees with none; that a request succeeded is no state.
    """
    try:
        said = _find_states(json.loads(text))
    except (ValueError, RecursionError):
        bare = _BARE.match(text.strip())
        said = [] if bare is None else [bare[1]]
    words = f"its state is {_shorten(', '.join(dict.fromkeys(said)))}"
    states = {word for word in map(str.lower, said) if word not in ANSWERED}
    if states & AT_WORK:
        return Word(THERE, words)
    if not states or states - ENDED_WORDS - STOPPED_WORDS:
        return Word(UNKNOWN, f"no state that is known here in the answer: {_shorten(text)}")
    return Word(GONE if states <= ENDED_WORDS else STOPPED, words)


def _find_states(value: object) -> list[str]:
    if isinstance(value, dict):
        stated = [item for key, item in value.items() if str(key).lower() in STATE_KEYS]
        found = [word for item in stated for word in _read_words(item)]
        return found + [each for item in value.values() for each in _find_states(item)]
    if isinstance(value, list):
        return [each for item in value for each in _find_states(item)]
    return []


def _read_words(state: object) -> list[str]:
    """The words of a state: ``running``, ``{"Name": "running"}``, ``["running"]``; anything else as it is."""
    if isinstance(state, dict):
        named = [item for key, item in state.items() if str(key).lower() in {"name", "value"} | STATE_KEYS]
        return [word for item in named for word in _read_words(item)] or [str(state)]
    if isinstance(state, list):
        return [word for item in state for word in _read_words(item)]
    return [] if state is None else [str(state)]


def _shorten(text: str) -> str:
    return clean(" ".join(text.split()))[:LONGEST_SEEN]
