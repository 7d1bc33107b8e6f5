"""Post a message to an address of the web: no redirection is followed, and of the answer only the status is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.messages.channels import is_url

from .problem import NotDelivered

if TYPE_CHECKING:
    from holdfast.core.messages.payloads import Payload

LIMIT_S = 10.0
_REDIRECTED, _REFUSED, _BROKEN = 300, 400, 500
_TOO_MANY = 429
_MOST_DIGITS = 6


def post(url: str, payload: Payload) -> None:
    """Send it; a proxy of the environment is used as by every program.

    Raises:
        NotDelivered: the address is none, or whoever is there did not take it.
        OSError: nobody is there.
    """
    import http.client
    import urllib.error
    import urllib.request

    class NoRedirection(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            """Whoever answers there could send the message, and the address, anywhere."""

    if not is_url(url):
        raise NotDelivered("the secret is no address that begins with https:// or http://")
    request = urllib.request.Request(url, data=payload.body, headers=payload.headers, method="POST")  # noqa: S310 - checked above
    try:
        with urllib.request.build_opener(NoRedirection).open(request, timeout=LIMIT_S):
            return
    except urllib.error.HTTPError as error:
        with error:
            code, after_s = error.code, _read_pause(error.headers.get("Retry-After", ""))
        why = "; it redirects, which is not followed" if _REDIRECTED <= code < _REFUSED else ""
        why += f"; it asks to wait for {after_s:.0f} s" if after_s else ""
        passing = code >= _BROKEN or code == _TOO_MANY
        raise NotDelivered(f"HTTP {code}{why}", passing=passing, after_s=after_s) from None
    except urllib.error.URLError as error:
        reason = error.reason
        raise reason if isinstance(reason, OSError) else NotDelivered(str(reason)) from None
    except http.client.HTTPException as error:
        closed = isinstance(error, ConnectionError)
        words = "the connection was closed without an answer" if closed else "the answer is none of HTTP"
        raise NotDelivered(words, passing=closed) from None


def _read_pause(text: str) -> float:
    """Seconds of a ``Retry-After`` (RFC 9110, 10.2.3); 0 where it says a date, or nothing that can be understood."""
    whole = text.strip().partition(".")[0]
    return float(whole) if whole.isascii() and whole.isdigit() and len(whole) <= _MOST_DIGITS else 0.0
