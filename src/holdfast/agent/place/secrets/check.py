"""Whether a credential works, found out without showing it: one request that carries it, and the answer's status."""

from __future__ import annotations

import http.client
import ipaddress
import ssl
import urllib.error
import urllib.request
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from holdfast.core.job.redact import is_secret_value
from holdfast.model.errors import StorageError, UsageError

if TYPE_CHECKING:
    from email.message import Message
    from typing import IO

LIMIT_S = 10.0
"""For each step of the connection; the desk bounds the whole."""


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows nothing: another host would get the credential."""

    def redirect_request(  # noqa: PLR0917 - urllib's signature
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """No further request: the redirection is the answer."""
        del req, fp, code, msg, headers, newurl


def check_url(url: str) -> None:
    """Refuse an address that a credential must not be sent to.

    Raises:
        UsageError: it is not https (http: only on this very box), or has a user or a secret in it.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise UsageError(f"--url cannot be read: {error}") from None
    if parts.scheme not in ("https", "http") or not host or "@" in parts.netloc:
        raise UsageError("--url has to be https://HOST/PATH, without a user or password in it")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError("--url has characters that no address has")
    if parts.scheme == "http" and not _is_loopback(host):
        raise UsageError(f"--url would send the secret to {host} unencrypted", hint="use https")
    if is_secret_value(url):
        raise UsageError("--url holds what looks like a secret")


def try_bearer(value: bytes, url: str) -> int:
    """The status of one GET with ``Authorization: Bearer VALUE``; nothing of the answer is read, nothing is followed.

    Raises:
        UsageError: the address is refused, or the value cannot be a bearer token.
        StorageError: there was no answer.
    """
    check_url(url)
    # http.client would put the value into its error.
    if not value.isascii() or not value.decode("ascii").isprintable():
        raise UsageError("the secret is more than one line of plain text: it is no bearer token")
    headers = {"Authorization": f"Bearer {value.decode('ascii')}", "User-Agent": "holdfast", "Connection": "close"}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the scheme was checked
    handlers: list[urllib.request.BaseHandler] = [_Stay()]
    if urlsplit(url).scheme == "http":
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=LIMIT_S) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except (OSError, ssl.SSLError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        words = getattr(reason, "strerror", None) or type(reason).__name__
        raise StorageError(
            f"{urlsplit(url).netloc} gave no answer: {words}", hint="try it from the box itself"
        ) from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
