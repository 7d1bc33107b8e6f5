"""Send a message by mail: by the box's own sendmail, or by a mail server that the job names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.core.messages.channels import read_server
from holdfast.host.process.processes import user_name
from holdfast.model.job import SmtpTls

from .problem import NotDelivered

if TYPE_CHECKING:
    import smtplib
    from collections.abc import Mapping

    from holdfast.core.messages.text import MessageText
    from holdfast.model.job import Channels

LIMIT_S = 10.0
SENDMAIL = ("/usr/sbin/sendmail", "/usr/lib/sendmail", "/usr/bin/sendmail", "/sbin/sendmail")
"""Source: Filesystem Hierarchy Standard 3.0, 4.10.2 (/usr/sbin/sendmail) and 4.7.2 (/usr/lib/sendmail)."""
SENDMAIL_VARIABLE = "HOLDFAST_SENDMAIL"
PORTS = {SmtpTls.STARTTLS: 587, SmtpTls.TLS: 465, SmtpTls.NONE: 25}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def find_sendmail(environ: Mapping[str, str]) -> str | None:
    """The box's program that sends mail: ``$HOLDFAST_SENDMAIL``, else where systems have it."""
    stated = environ.get(SENDMAIL_VARIABLE, "")
    paths = (stated,) if stated else SENDMAIL
    return next((path for path in paths if os.path.isabs(path) and os.access(path, os.X_OK)), None)


def find_server(channels: Channels) -> tuple[str, int]:
    """Host and port of the mail server that is named."""
    host, port = read_server(channels.smtp or "")
    return host, port or PORTS[channels.smtp_tls]


def send_mail(channels: Channels, address: str, text: MessageText, password: str | None) -> None:
    """Send it to one address.

    Raises:
        NotDelivered: it was not taken.
        OSError: the server is not there.
    """
    import email.message
    import email.utils

    host = os.uname().nodename
    mail = email.message.EmailMessage()
    mail["Subject"] = f"[holdfast] {text.title}"
    mail["From"] = channels.email_from or f"{user_name(os.geteuid())}@{host}"
    mail["To"] = address
    mail["Date"] = email.utils.formatdate()
    mail["Message-ID"] = email.utils.make_msgid(domain=host)
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(str(text))
    if channels.smtp is None:
        _hand_in(mail.as_bytes())
    else:
        _deliver(channels, mail, password)


def _hand_in(mail: bytes) -> None:
    import subprocess

    sendmail = find_sendmail(os.environ)
    if sendmail is None:
        raise NotDelivered("the box has no sendmail; name a server: notify.smtp")
    try:
        done = subprocess.run((sendmail, "-i", "-t"), input=mail, capture_output=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotDelivered(f"{sendmail} took longer than {LIMIT_S:.0f} s and was ended") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise NotDelivered(": ".join((f"{sendmail} ended with {done.returncode}", *said)))


def _deliver(channels: Channels, mail: object, password: str | None) -> None:
    import smtplib
    import ssl

    host, port = find_server(channels)
    tls, me = channels.smtp_tls, os.uname().nodename
    if password is not None and tls is SmtpTls.NONE and host not in _LOOPBACK:
        raise NotDelivered("a password is not sent without TLS: notify.smtp_tls")
    try:
        context = ssl.create_default_context()
        server: smtplib.SMTP
        if tls is SmtpTls.TLS:
            server = smtplib.SMTP_SSL(host, port, local_hostname=me, timeout=LIMIT_S, context=context)
        else:
            server = smtplib.SMTP(host, port, local_hostname=me, timeout=LIMIT_S)
        with server:
            if tls is SmtpTls.STARTTLS:
                server.starttls(context=context)
            if channels.smtp_user is not None:
                server.login(channels.smtp_user, password or "")
            server.send_message(mail)  # type: ignore[arg-type]  # an EmailMessage, whose module is loaded above
    except smtplib.SMTPNotSupportedError as error:
        way = "notify.smtp_tls, notify.smtp_user"
        raise NotDelivered(f"the mail server does not offer what is asked for: {error} ({way})") from None
    except smtplib.SMTPAuthenticationError as error:
        raise NotDelivered(f"the mail server takes no such user and password ({error.smtp_code})") from None
    except smtplib.SMTPRecipientsRefused as error:
        code = next(iter(error.recipients.values()))[0]
        raise NotDelivered(f"the mail server refuses the address ({code})", passing=400 <= code < 500) from None
    except smtplib.SMTPResponseException as error:
        raise NotDelivered(
            f"the mail server refused it ({error.smtp_code})", passing=400 <= error.smtp_code < 500
        ) from None
    except smtplib.SMTPException as error:
        raise NotDelivered(f"the mail server: {error}") from None
