"""From what OpenSSH's client said to what it means: used only where the frame shows that no whole answer came.

Source: the messages of sshconnect.c, sshconnect2.c, packet.c, clientloop.c and channels.c, OpenSSH 7.4 to 9.9. What is
not known here is `CutOff`: then the command may have been sent.
"""

from __future__ import annotations

import base64
import hashlib
import re

from holdfast.core.control_characters import clean, one_line
from holdfast.model.errors import CutOff, HoldfastError, Refused, Unreachable
from holdfast.model.place import Place
from holdfast.transport.child import Ending

CONNECTION_FAILED = 255
"""ssh's own exit code for everything that is not the command's. Source: ssh(1), EXIT STATUS."""
LONGEST_SEEN = 400
MOST_KNOWN_HOSTS_LINES = 100_000

JUMP = "jump"
"""The `why` of a connection that another program was to make; what that program said is not told."""

_NOT_SENT = tuple(
    (why, re.compile(pattern, re.MULTILINE), meaning)
    for why, pattern, meaning in (
        ("name", r"Could not resolve hostname", "its name is not known"),
        ("refused", r"connect to .*: Connection refused", "nothing listens on its port"),
        ("banner", r"during banner exchange|[Bb]anner exchange: ", "no SSH server answers on its port"),
        ("timeout", r"connect to .*: (Connection|Operation) timed out", "its address does not answer"),
        ("route", r"connect to .*: (No route to host|Network is unreachable|Host is down)", "there is no route to it"),
        ("connect", r"^ssh: connect to ", "no connection"),
        (JUMP, r"^Connection (closed|reset) by UNKNOWN port", "the jump host or ProxyCommand gave no connection"),
        (
            "dropped",
            r"^\w+_exchange_identification: ",
            "the link ended before anything was sent",
        ),
        ("dropped", r"^Connection (closed|reset) by ", "the link ended before anything was sent"),
        ("timeout", r"^Connection to .* timed out", "it stopped answering before anything was sent"),
        ("session", r"exec request failed on channel|^channel \d+: open failed", "the server gave us no session"),
    )
)
"""In this order: a jump host's message comes before the one of the host behind it. Not here, since the command may have
been sent by then: ``Received disconnect from`` and ``ssh_dispatch_run_fatal``, which packet.c says at any time."""
_AUTHENTICATION = re.compile(
    r"^(\S+@\S+: )?Permission denied \((?P<methods>[\w,-]+)\)|Too many authentication", re.MULTILINE
)
_HOST_KEY = re.compile(
    r"^Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED|REVOKED HOST KEY", re.MULTILINE
)
_ON_THE_WAY = next(pattern for why, pattern, _ in _NOT_SENT if why == JUMP)
"""Said when the program that was to make the connection ended; what it said itself stands before."""
_CHANGED = "REMOTE HOST IDENTIFICATION HAS CHANGED"
_REVOKED = "REVOKED HOST KEY"
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_OFFENDING = re.compile(r"^Offending \S+ key in (.+):(\d+)\s*$", re.MULTILINE)
_SETTINGS = re.compile(
    r"Unable to negotiate with .*|Bad owner or permissions on .*|.*[Bb]ad configuration option.*"
    r"|^hostname contains invalid characters|^command-line: line \d+: .*",
    re.MULTILINE,
)


def explain(place: Place, ending: Ending) -> HoldfastError:
    """The error for a call whose answer is not whole."""
    text = ending.err.decode(errors="replace").replace("\r", "")
    if ending.too_noisy:  # also when the command has begun: its standard error may come before the end of the noise
        return _refuse(
            place,
            "noise",
            "its login prints more than 64 KiB before a command begins",
            hint="let its startup files (.bashrc, .cshrc ...) print to a terminal only",
        )
    if ending.begun:
        return _cut_off(place, "the link ended before the answer was whole", text)
    if ending.returncode == CONNECTION_FAILED:
        return _explain_connection(place, text)
    if ending.returncode is None or ending.returncode < 0:
        return _cut_off(place, "the ssh client was ended from outside", text)
    seen = f"{ending.out.decode(errors='replace')} {text}".strip() or "nothing"
    if "/dev/null" in seen:
        return _refuse(
            place,
            "shell",
            "its /dev/null cannot be used, and no command begins without it",
            seen=f"it printed: {seen}",
            hint="who runs it makes it anew, as root there: rm -f /dev/null; mknod -m 666 /dev/null c 1 3",
        )
    return _refuse(
        place,
        "shell",
        f"its login shell runs no commands: exit code {ending.returncode}",
        seen=f"it printed: {seen}",
        hint="at a provider's proxy, which is for people alone, take the box's direct address (`SSH over exposed TCP` "
        f"or so): holdfast place add {place.name} USER@HOST --port N --replace; else ask for an account whose login "
        "shell is one (sh, bash, zsh, csh, fish ...)",
    )


def _explain_connection(place: Place, text: str) -> HoldfastError:
    if _HOST_KEY.search(text):
        return _explain_host_key(place, text)
    match = _AUTHENTICATION.search(text)
    if match:
        return _explain_authentication(place, text, match["methods"] or "")
    match = _SETTINGS.search(text)
    if match:
        return _refuse(place, "settings", "client and server cannot agree", seen=match[0], hint=_try_ssh(place))
    for why, pattern, meaning in _NOT_SENT:
        if pattern.search(text):
            return Unreachable(
                f"{place.name} is unreachable: {meaning} ({_last_lines(text)})",
                hint=f"{_try_ssh(place)}; nothing was sent, and no run there is touched{_offer_refresh(place)}",
                details={"place": place.name, "why": why},
            )
    return _cut_off(place, "the link ended before an answer", text)


def _offer_refresh(place: Place) -> str:
    """How to say where a rented box is now: with each start it may have another address and port."""
    if not place.configured or place.port is None:
        return ""
    return f". If it was started anew elsewhere: holdfast place add {place.name} USER@HOST --port N --replace"


def _explain_authentication(place: Place, text: str, methods: str) -> Refused:
    wants_more = methods and "publickey" not in methods.split(",")
    return _refuse(
        place,
        "authentication",
        f"it wants more than a key ({methods})" if wants_more else "it takes none of our keys",
        seen=_last_lines(text),
        hint=f"run `holdfast place login {place.name}`, which may ask for a password, a code or a passphrase; "
        "or load the key with ssh-add",
    )


def _explain_host_key(place: Place, text: str) -> Refused:
    if _ON_THE_WAY.search(text):
        # `place trust` would ask on the same way, and get no further.
        return _refuse(
            place,
            "host_key_on_the_way",
            "the key of a host on the way to it (ProxyJump, ProxyCommand) is unknown, changed or revoked",
            seen=_last_lines(text),
            hint="connect to that host by ssh itself, look at its key, and record it; then type the command again",
        )
    if _REVOKED in text:
        return _refuse(
            place,
            "host_key_revoked",
            "its host key is marked as revoked",
            seen=_last_lines(text),
            hint="ask who runs it for its new key",
        )
    found = _FINGERPRINT.search(text)
    offered = found[0] if found else "not shown"
    if _CHANGED not in text:
        return _refuse(
            place,
            "host_key_unknown",
            "its host key is not known here",
            seen=_last_lines(text),
            hint=f"run `holdfast place trust {place.name}`: it shows the fingerprint and asks",
        )
    offending = _OFFENDING.search(text)
    where, known = "the known hosts", "not shown"
    if offending:
        where = f"{clean(offending[1])} line {offending[2]}"
        known = _read_fingerprint(offending[1], int(offending[2])) or "not readable"
    error = _refuse(
        place,
        "host_key_changed",
        f"its host key has changed: known is {known}, offered is {offered}",
        seen=where,
        hint=f"ask who runs it whether that is right; if so, `holdfast place trust {place.name}` replaces just this "
        "entry; if not, somebody else may be answering",
    )
    error.details.update(known=known, offered=offered, known_hosts=where)
    return error


def _read_fingerprint(path: str, number: int) -> str | None:
    """The fingerprint of the key in a line of a known_hosts file, as `ssh-keygen -l` prints it."""
    try:
        with open(path, errors="replace") as file:
            for count, line in zip(range(1, MOST_KNOWN_HOSTS_LINES), file, strict=False):
                if count == number:
                    key = next(word for word in line.split() if word.startswith("AAAA"))
                    digest = hashlib.sha256(base64.b64decode(key)).digest()
                    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
    except (OSError, ValueError, StopIteration):
        return None
    return None


def _refuse(place: Place, why: str, meaning: str, *, hint: str, seen: str = "") -> Refused:
    told = f" ({one_line(seen, LONGEST_SEEN)})" if seen else ""
    details: dict[str, object] = {"place": place.name, "why": why}
    return Refused(f"{place.name} does not let us in: {meaning}{told}", hint=hint, details=details)


def _cut_off(place: Place, meaning: str, text: str) -> CutOff:
    seen = _last_lines(text)
    return CutOff(
        f"{place.name}: {meaning}" + (f" ({seen})" if seen else ""),
        hint="ask again: whether it had an effect there is not known, and what runs there goes on",
        details={"place": place.name, "why": "cut_off"},
    )


def _try_ssh(place: Place) -> str:
    port = f"-p {place.port} " if place.port is not None else ""
    return f"try `ssh {port}{clean(place.host or '')}`"


def _last_lines(text: str) -> str:
    """The last things that were said, as one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("@@@")]
    return one_line("; ".join(lines[-3:]), LONGEST_SEEN)
