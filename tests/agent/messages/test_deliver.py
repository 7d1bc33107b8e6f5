"""Handing a message to each channel, against real servers and programs: taken, refused, hanging, cut off."""

from __future__ import annotations

import email
import email.policy
import json
import os
import shutil
import ssl
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.messages import deliver as delivering
from holdfast.agent.messages import mail, web
from holdfast.agent.messages.deliver import deliver
from holdfast.agent.messages.reach import look_at_ways
from holdfast.core.messages.admission import MOST_AN_HOUR
from holdfast.host.files.secret_files import secrets_directory, write_secret
from holdfast.host.process.offload import Offload
from holdfast.model.job import Channels, Notify, SmtpTls
from tests.agent.messages.endpoints import Endpoint, MailSink, make_program, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.requirement("MON-17")]

FACTS: dict[str, object] = {"state": "ended", "name": "digits", "run_id": "r-1", "outcome": "failed", "class": "bug"}
PASSWORD = "correct horse battery staple"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may pass is tried again without a pause."""
    monkeypatch.setattr(delivering, "AGAIN_AFTER_S", 0.0)


@pytest.fixture
def endpoint() -> Iterator[Callable[..., Endpoint]]:
    with ExitStack() as stack:

        def make(*moods: int | str) -> Endpoint:
            made = Endpoint(moods or (204,))
            stack.enter_context(serving(made.server))
            stack.callback(made.let_go.set)
            return made

        yield make


@pytest.fixture
def tls_endpoint(tmp_path: Path) -> Iterator[str]:
    """A server with a certificate that nobody has signed."""
    key, made = str(tmp_path / "key"), str(tmp_path / "certificate")
    words = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-subj",
        "/CN=localhost",
    ]
    openssl = shutil.which("openssl") or pytest.skip("no openssl")
    subprocess.run([openssl, *words, "-keyout", key, "-out", made], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    there = Endpoint((204,))
    there.server.socket = context.wrap_socket(there.server.socket, server_side=True)
    with serving(there.server):
        yield there.url.replace("http:", "https:")


@pytest.fixture
def sink() -> Iterator[Callable[..., MailSink]]:
    with ExitStack() as stack:

        def make(refuse: str = "") -> MailSink:
            made = MailSink(refuse)
            stack.enter_context(serving(made.server))
            return made

        yield make


def test_each_channel_gets_its_own_form_at_the_address_of_a_secret(endpoint: Callable[..., Endpoint]) -> None:
    there = endpoint()
    for name in ("SLACK", "DISCORD"):
        write_secret(name, f"{there.url}/{name.lower()}/T0-token-of-mine\n".encode())
    channels = Channels(slack=("secret:SLACK",), discord=("secret:DISCORD",), ntfy=(f"{there.url}/topic",))
    done = deliver(Notify(webhook=f"{there.url}/hook"), channels, FACTS)
    assert done.problems == {"webhook": None, "slack": None, "discord": None, "ntfy": None}
    got = {path.split("/")[1]: (headers, body) for path, headers, body in there.got}
    assert json.loads(got["slack"][1])["text"].startswith("digits failed (bug)\n")
    assert "digits failed (bug)" in json.loads(got["discord"][1])["content"]
    assert json.loads(got["hook"][1])["run_id"] == "r-1"
    assert got["topic"][0]["Title"].startswith("=?UTF-8?B?")
    assert all(b"token-of-mine" not in body for _, body in got.values())


def test_what_went_wrong_is_told_without_the_address_and_the_others_get_it(endpoint: Callable[..., Endpoint]) -> None:
    broken, gone, moved, shut, fine = (endpoint(mood) for mood in (500, 404, "/elsewhere", "close", 200))
    write_secret("SLACK", f"{gone.url}/T0-token-of-mine".encode())
    hooks = tuple(f"{there.url}/x" for there in (broken, moved, shut, fine))
    problems = deliver(Notify(webhook=hooks), Channels(slack=("secret:SLACK",)), FACTS).problems
    assert problems["webhook 1"] == "HTTP 500"
    assert len(broken.got) == 2
    assert problems["slack"] == "HTTP 404"
    assert len(gone.got) == 1
    assert problems["webhook 2"] == "HTTP 302; it redirects, which is not followed"
    assert [path for path, _, _ in moved.got] == ["/x"]
    assert problems["webhook 3"] == "the connection was closed without an answer"
    assert problems["webhook 4"] is None
    assert "127.0.0.1" not in json.dumps(problems)


def test_a_refusal_that_passes_is_tried_once_more(endpoint: Callable[..., Endpoint]) -> None:
    there = endpoint(503, 200)
    assert deliver(Notify(webhook=there.url), Channels(), FACTS).problems == {"webhook": None}
    assert len(there.got) == 2


def test_who_asks_to_be_left_alone_for_longer_is_not_asked_again(endpoint: Callable[..., Endpoint]) -> None:
    busy, soon = endpoint(429), endpoint(429, 204)
    busy.headers, soon.headers = {"Retry-After": "30"}, {"Retry-After": "0.4"}
    problems = deliver(Notify(webhook=(busy.url, soon.url)), Channels(), FACTS).problems
    assert problems == {"webhook 1": "HTTP 429; it asks to wait for 30 s", "webhook 2": None}
    assert (len(busy.got), len(soon.got)) == (1, 2)


def test_what_nobody_took_may_be_told_again_at_once(endpoint: Callable[..., Endpoint]) -> None:
    there = endpoint(404, 204)
    assert deliver(Notify(webhook=there.url), Channels(), FACTS, "r-1 stalled").problems == {"webhook": "HTTP 404"}
    assert deliver(Notify(webhook=there.url), Channels(), FACTS, "r-1 stalled").problems == {"webhook": None}


@pytest.mark.slow
def test_messages_that_nobody_took_do_not_use_up_the_hour() -> None:
    broken = Notify(command=("/no/such",))
    for number in range(MOST_AN_HOUR + 1):
        found = deliver(broken, Channels(), FACTS, f"r-{number} ended")
        assert (bool(found.problems["command"]), found.suppressed) == (True, "")


def test_a_server_without_good_tls_or_without_a_name_is_told_in_words(
    endpoint: Callable[..., Endpoint], tls_endpoint: str
) -> None:
    plain = endpoint().url.replace("http:", "https:")
    hooks = (tls_endpoint, plain, "https://no-such-host.invalid/x")
    problems = list(deliver(Notify(webhook=hooks), Channels(), FACTS).problems.values())
    assert str(problems[0]).startswith("TLS: ")
    assert "certificate verify failed" in str(problems[0])
    assert str(problems[1]).startswith("TLS: ")
    assert str(problems[2]).startswith("its name was not found here: ")


def test_who_hangs_is_given_up(endpoint: Callable[..., Endpoint], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "LIMIT_S", 0.3)
    silent = endpoint("hang")
    problems = deliver(Notify(webhook=silent.url), Channels(), FACTS).problems
    assert "time" in str(problems["webhook"])
    silent.let_go.set()


def test_all_who_hang_are_given_up_within_one_limit(
    endpoint: Callable[..., Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivering, "CHANNEL_LIMIT_S", 0.3)
    counted: list[bool] = []

    class Counted(Offload):
        def wait(self, limit_s: float, *, since_start: bool = False) -> object:
            counted.append(since_start)
            return super().wait(limit_s, since_start=since_start)

    monkeypatch.setattr(delivering, "Offload", Counted)
    first, second = endpoint("hang"), endpoint("hang")
    problems = deliver(Notify(webhook=(first.url, second.url)), Channels(), FACTS).problems
    assert counted == [True, True]
    assert set(problems.values()) == {"no answer within 0.3 s"}
    for silent in (first, second):
        silent.let_go.set()


def test_a_secret_that_cannot_be_used_is_named_and_how_to_mend_it(endpoint: Callable[..., Endpoint]) -> None:
    write_secret("OPEN", f"{endpoint().url}/x".encode())
    os.chmod(f"{secrets_directory()}/OPEN", 0o644)
    write_secret("TEXT", b"no address at all")
    problems = deliver(Notify(), Channels(slack=("secret:NONE", "secret:OPEN", "secret:TEXT")), FACTS).problems
    assert str(problems["slack 1"]).startswith("secret NONE is not on this box; holdfast secret push PLACE NONE")
    assert "could be read by others (mode 0644)" in str(problems["slack 2"])
    assert problems["slack 3"] == "the secret is no address that begins with https:// or http://"


def test_a_command_gets_the_whole_message_however_long(tmp_path: Path) -> None:
    hook = make_program(tmp_path / "hook", f"cat > {tmp_path}/got")
    deliver(Notify(command=(hook,)), Channels(), {**FACTS, "diagnosis": {"evidence": ["x" * 100] * 500}})
    got = json.loads((tmp_path / "got").read_text(encoding="utf-8"))
    assert (got["schema"], got["run_id"], len(got["diagnosis"]["evidence"])) == (1, "r-1", 500)
    assert got["text"].startswith("digits failed (bug)")
    assert deliver(Notify(command=("true",)), Channels(), {"x": "y" * 500_000}).problems == {"command": None}


@pytest.mark.parametrize("where", ["/", "here"])
def test_a_command_runs_in_the_home_directory_whoever_tells(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path if where == "here" else where)
    deliver(Notify(command=("sh", "-c", "pwd > got")), Channels(), FACTS)
    assert (home / "got").read_text(encoding="utf-8").strip() == str(home)
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    deliver(Notify(command=("sh", "-c", f"pwd > {tmp_path}/got")), Channels(), FACTS)
    assert (tmp_path / "got").read_text(encoding="utf-8") == "/\n"


def test_a_mail_goes_by_sendmail_of_the_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = make_program(tmp_path / "sendmail", f'echo "$@" > {tmp_path}/words; cat > {tmp_path}/mail')
    monkeypatch.setenv(mail.SENDMAIL_VARIABLE, program)
    channels = Channels(email=("me@example.org",))
    facts = {**FACTS, "name": "d\u00e9bris", "cause": "x\r\nBcc: all@example.org"}
    assert deliver(Notify(), channels, facts).problems == {"email": None}
    got = email.message_from_bytes((tmp_path / "mail").read_bytes(), policy=email.policy.default)
    assert (tmp_path / "words").read_text(encoding="utf-8").split() == ["-i", "-t"]
    assert (got["To"], got["Subject"], got["Bcc"]) == ("me@example.org", "[holdfast] d\u00e9bris failed (bug)", None)
    assert got["Auto-Submitted"] == "auto-generated"
    make_program(tmp_path / "sendmail", "echo 'me@example.org: queue is full' >&2; exit 75")
    problem = deliver(Notify(), channels, facts).problems["email"]
    assert str(problem).endswith("ended with 75: me@example.org: queue is full")
    monkeypatch.setenv(mail.SENDMAIL_VARIABLE, "/no/such/program")
    assert "has no sendmail" in str(deliver(Notify(), channels, facts).problems["email"])


def test_a_mail_goes_by_a_server_with_a_password_from_a_secret(sink: Callable[..., MailSink]) -> None:
    write_secret("MAIL", PASSWORD.encode())
    there = sink()
    channels = Channels(
        email=("me@example.org",), email_from="box@example.org", smtp=there.address, smtp_user="me",
        smtp_password="secret:MAIL", smtp_tls=SmtpTls.NONE,
    )  # fmt: skip
    facts = {**FACTS, "cause": f"the log says {PASSWORD}"}
    assert deliver(Notify(), channels, facts).problems == {"email": None}
    (got,) = there.mails
    assert "From: box@example.org" in got
    assert "horse" not in got
    assert any(line.startswith("AUTH PLAIN") for line in there.said)


def test_a_mail_that_is_not_taken_is_told(sink: Callable[..., MailSink]) -> None:
    def send(server: str) -> str | None:
        channels = Channels(email=("me@example.org",), smtp_tls=SmtpTls.NONE, smtp=server)
        return deliver(Notify(), channels, FACTS).problems["email"]

    assert send(sink("RCPT").address) == "the mail server refuses the address (550)"
    assert send(sink("MAIL").address) == "the mail server refused it (550)"
    assert "refused" in str(send("127.0.0.1:1"))
    assert send(sink().address) is None


def test_a_password_never_crosses_a_network_in_the_open(sink: Callable[..., MailSink]) -> None:
    write_secret("MAIL", PASSWORD.encode())
    channels = Channels(
        email=("me@example.org",), smtp="192.0.2.1:25", smtp_user="me", smtp_password="secret:MAIL",
        smtp_tls=SmtpTls.NONE,
    )  # fmt: skip
    problem = deliver(Notify(), channels, FACTS).problems["email"]
    assert problem == "a password is not sent without TLS: notify.smtp_tls"
    wrong = Channels(
        email=("me@example.org",), smtp=sink("AUTH").address, smtp_user="me", smtp_password="secret:MAIL",
        smtp_tls=SmtpTls.NONE,
    )  # fmt: skip
    assert deliver(Notify(), wrong, FACTS).problems["email"] == "the mail server takes no such user and password (550)"
    # A server that offers no TLS where it is asked for is not used without.
    starttls = Channels(email=("me@example.org",), smtp=sink().address)
    problem = str(deliver(Notify(), starttls, FACTS).problems["email"])
    assert problem.startswith("the mail server does not offer what is asked for: STARTTLS")
    assert "notify.smtp_tls" in problem


def test_the_same_message_is_told_once(endpoint: Callable[..., Endpoint]) -> None:
    there = endpoint()
    first, second = (deliver(Notify(webhook=there.url), Channels(), FACTS, "r-1 stalled") for _ in range(2))
    assert first.problems == {"webhook": None}
    assert (second.problems, second.suppressed) == ({}, "the same was told within 10 minutes")
    assert len(there.got) == 1


def test_who_cannot_be_told_is_known_before_and_nothing_is_sent(
    endpoint: Callable[..., Endpoint], tmp_path: Path
) -> None:
    there = endpoint()
    notify = Notify(command=("no-such-hook",), webhook=(there.url, "http://127.0.0.1:1/x"))
    channels = Channels(slack=("secret:NONE",), email=("me@example.org",))
    found = {reach.label: reach.problem for reach in look_at_ways(notify, channels, {"HOLDFAST_SENDMAIL": "/none"})}
    assert found == {
        "secret NONE": "is not on this box; nothing can be told by it",
        "command": "there is no program no-such-hook that can be run",
        "email": "there is no sendmail ($HOLDFAST_SENDMAIL names one); or set notify.smtp",
        "webhook 1": "",
        "webhook 2": found["webhook 2"],
    }
    assert found["webhook 2"] == "cannot be reached from here: Connection refused"
    assert there.got == []
    hook = make_program(tmp_path / "hook", "exit 1")
    assert [reach.problem for reach in look_at_ways(Notify(command=(hook,)), Channels(), os.environ)] == [""]
