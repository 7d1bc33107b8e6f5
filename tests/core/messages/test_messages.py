"""What a message says, how each channel takes it, how many there may be: all of it pure."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.messages.admission import (
    AN_HOUR_S,
    MOST_AN_HOUR,
    SAME_WITHIN_S,
    Admission,
    SentMessages,
    admit,
    withdraw,
)
from holdfast.core.messages.channels import (
    hide_addresses,
    list_secrets,
    list_targets,
    read_address,
    read_mail,
    read_rhythm,
    read_secret,
    read_server,
    split_url,
)
from holdfast.core.messages.payloads import MOST_WEBHOOK_BYTES, build_json, build_payload
from holdfast.core.messages.text import MOST_TEXT, describe
from holdfast.model.job import Channels, Notify

pytestmark = pytest.mark.pure

TOKEN = "hf_" + "a1B2" * 8
ENDED: dict[str, object] = {
    "state": "ended",
    "name": "digits",
    "run_id": "20261122-100000-digits-5c0e",
    "attempt": 2,
    "host": "gpu1",
    "place": "lab",
    "outcome": "failed",
    "class": "out_of_memory",
    "cause": "CUDA out of memory",
    "action": "ask for less",
    "reason": "the job ended with exit code 1",
    "look": "holdfast show lab:20261122-100000-digits-5c0e",
}


STRANGE = st.builds(
    lambda text, times: text * times,
    st.sampled_from(
        ["@", "@everyone ", "<!channel> ", "[a](https://x) ", "`", "&", "\u202e\u200b", "\U0001f600", "\r\nBcc: x "]
    ),
    st.integers(1, 2000),
)


@pytest.mark.requirement("MON-17")
def test_MON_17_a_message_has_class_cause_action_host_name_and_where_to_look() -> None:
    text = describe(ENDED)
    assert text.title == "digits failed (out_of_memory)"
    assert text.lines == (
        "cause: CUDA out of memory",
        "seen: the job ended with exit code 1",
        "do: ask for less",
        "on gpu1 (lab), 20261122-100000-digits-5c0e, attempt 2",
        "look: holdfast show lab:20261122-100000-digits-5c0e",
    )


def test_a_status_says_step_loss_and_time_left() -> None:
    facts = {"state": "status", "name": "digits", "step": 500, "planned_steps": 2000, "loss": 0.25, "left_s": 5400.0}
    assert describe(facts).title == "digits runs: step 500 of 2000 (25 %), loss 0.25, about 1h30m left"
    assert describe({"state": "status", "name": "digits"}).title == "digits runs: no step is known"


def test_a_patrol_names_the_runs_that_need_a_person() -> None:
    runs = [{"run_id": f"run-{n}", "text": "stalled " * 40} for n in range(9)]
    text = describe({"state": "patrol", "summary": "9 runs need a person", "runs": runs, "blind": ["a disk"]})
    assert text.title == "9 runs need a person"
    assert text.lines[0].startswith("run-0: stalled stalled")
    assert len(str(text)) <= MOST_TEXT


@given(
    st.dictionaries(
        st.sampled_from([*ENDED, "why", "doubt", "summary"]),
        STRANGE | st.text(max_size=3000) | st.integers() | st.none(),
    ),
    st.sampled_from(["ended", "status", "patrol", "stalled", "group", "\x1b[2J"]),
)
def test_a_strangers_text_steers_nothing_and_stays_short(facts: dict[str, object], state: str) -> None:
    text = describe({**facts, "state": state})
    assert len(str(text)) <= MOST_TEXT
    assert "\n" not in text.title
    for line in (text.title, *text.lines):
        assert not any(
            ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0 or letter in "\u200b\u202e\u2066" for letter in line
        )
    for channel in ("slack", "discord", "ntfy", "webhook"):
        payload = build_payload(channel, facts, text)
        assert all("\n" not in value and value.isascii() for value in payload.headers.values())
        assert channel == "ntfy" or json.loads(payload.body)
    assert len(build_payload("ntfy", facts, text).body) <= 4096
    content = json.loads(build_payload("discord", facts, text).body)["content"]
    assert len(content.encode("utf-16-le")) // 2 <= 2000
    assert len(json.loads(build_payload("slack", facts, text).body)["text"]) <= 40_000
    webhook = build_payload("webhook", facts, text).body
    assert len(webhook) <= MOST_WEBHOOK_BYTES
    said = json.dumps(json.loads(webhook), ensure_ascii=False)
    assert not any(words in said for words in ("@everyone", "<!channel", "](http"))
    assert not any(ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0 for letter in said)


def test_no_secret_is_in_a_message() -> None:
    facts = {
        **ENDED,
        "cause": f"401 for HF_TOKEN={TOKEN} at swordfish",
        "diagnosis": {"evidence": [f"--token {TOKEN}"]},
    }
    text = describe(facts, ["swordfish"])
    assert TOKEN not in str(text)
    assert "swordfish" not in str(text)
    assert TOKEN.encode() not in build_json(facts, text)
    assert b"swordfish" not in build_json(facts, text, ["swordfish"])
    assert b"swordfish" not in build_payload("webhook", facts, text, ["swordfish"]).body


@pytest.mark.requirement("MON-17")
def test_no_secret_is_in_a_key_or_behind_one_whatever_the_channel() -> None:
    password = "correct horse battery"
    facts: dict[str, object] = {
        **ENDED,
        f"x.{TOKEN}": 1,
        "evidence": {f"{'k' * 70}={TOKEN}": "v", f"of {password}": ["w"], f"{TOKEN[:9]}\u200b{TOKEN[9:]}": 2},
        "params": {"api_key": "hunter2hunter2", "lr": "0.1", "max_tokens": "512", "HF_TOKEN": "$HF_TOKEN"},
    }
    text = describe(facts, (password,))
    bodies = [build_json(facts, text, (password,))]
    for channel in ("webhook", "slack", "discord", "ntfy"):
        payload = build_payload(channel, facts, text, (password,))
        bodies.append(payload.body + json.dumps(payload.headers).encode())
    for body in bodies:
        for secret in (TOKEN, TOKEN[:12], "horse", "hunter2"):
            assert secret.encode() not in body
    for body in (bodies[0], build_payload("webhook", facts, text, (password,)).body):
        kept = json.loads(body)["params"]
        assert kept == {"api_key": "[redacted]", "lr": "0.1", "max_tokens": "512", "HF_TOKEN": "$HF_TOKEN"}


def test_no_secret_is_put_together_by_what_is_taken_out_of_a_text() -> None:
    split = f"{TOKEN[:6]}\u200b{TOKEN[6:]} {TOKEN[:6]}\U000e0041{TOKEN[6:]} {TOKEN[:6]}\u00ad{TOKEN[6:]}"
    facts = {**ENDED, "cause": split}
    text = describe(facts)
    payload = json.loads(build_payload("webhook", facts, text).body)
    assert TOKEN not in f"{text}{payload}"


def test_what_a_stranger_wrote_is_bounded_for_a_webhook() -> None:
    facts = {**ENDED, "diagnosis": {"evidence": ["\x1b[31m" + "x" * 5000] * 500}, "cause": "x" * 1_000_000}
    body = build_payload("webhook", facts, describe(facts)).body
    assert len(body) <= MOST_WEBHOOK_BYTES
    found = json.loads(body)
    assert (found["run_id"], found["class"]) == (ENDED["run_id"], "out_of_memory")
    assert "\x1b" not in json.dumps(found, ensure_ascii=False)


def test_a_message_that_is_too_long_for_a_channel_keeps_where_to_look() -> None:
    facts = {**ENDED, "cause": "@" * 280, "reason": "@" * 280, "action": "@" * 280, "why": "\U0001f600" * 280}
    content = json.loads(build_payload("discord", facts, describe(facts)).body)["content"]
    assert content.splitlines()[-2] == f"look: {ENDED['look']}"


def test_nothing_of_the_text_is_markup_in_a_chat() -> None:
    text = describe({**ENDED, "cause": "<!channel> @everyone ``` *bold* <@U123|x> &amp;"})
    slack = json.loads(build_payload("slack", ENDED, text).body)
    assert "<" not in slack["text"]
    assert slack["mrkdwn"] is False
    assert "@everyone" not in slack["text"]
    discord = json.loads(build_payload("discord", ENDED, text).body)
    assert discord["allowed_mentions"] == {"parse": []}
    assert discord["content"].count("```") == 2
    assert len(discord["content"]) <= 2000
    webhook = json.loads(build_payload("webhook", ENDED, text).body)
    assert "@everyone" not in webhook["text"]
    assert "<!channel>" not in webhook["text"]
    assert (webhook["schema"], webhook["run_id"]) == (1, ENDED["run_id"])


def test_every_address_is_a_target_and_none_is_in_its_label() -> None:
    notify = Notify(command=("x",), webhook="https://a.example/1")
    channels = Channels(slack=("secret:A", "secret:B"), email=("me@example.org",), smtp_password="secret:C")
    assert [target.label for target in list_targets(notify, channels)] == [
        "command", "webhook", "slack 1", "slack 2", "email",
    ]  # fmt: skip
    assert list_secrets(notify, channels) == ("A", "B", "C")
    assert (
        list_targets(Notify(webhook=("https://a.example/1", "https://a.example/2")), Channels())[1].label == "webhook 2"
    )


@pytest.mark.parametrize(
    "text",
    [
        "ftp://example.org/x", "https://me:pw@example.org/x", "https://exa mple.org", "secret:", "secret:a b", "https://",
        "https://hooks.slack.com/services/T00/B00/XXXX", "https://example.org/x?token=abcdefgh", "https://\u00fc.org/",
    ],
)  # fmt: skip
def test_what_is_no_address_or_a_secret_is_refused_without_saying_it(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        read_address(text)
    assert "XXXX" not in str(caught.value)
    assert "abcdefgh" not in str(caught.value)


def test_addresses_as_they_are_written() -> None:
    assert read_address("https://ntfy.sh/topic") == "https://ntfy.sh/topic"
    assert read_address("secret:SLACK") == "secret:SLACK"
    assert read_server("mail.example.org") == ("mail.example.org", None)
    assert read_server("mail:587") == ("mail", 587)
    assert read_mail("me+x@example.org") == "me+x@example.org"
    assert split_url("https://[::1]:8443/x") == ("https", "::1", 8443)
    assert split_url("http://example.org") == ("http", "example.org", 80)
    assert split_url("https://example.org?x") == ("https", "example.org", 443)
    assert split_url("mailto:x") is None
    for read, wrong in (
        (read_server, "a:0"),
        (read_server, "-x"),
        (read_mail, "-f@x"),
        (read_mail, "me"),
        (read_secret, "x"),
    ):
        with pytest.raises(ValueError, match=r"."):
            read(wrong)


def test_how_often_a_run_is_told_of() -> None:
    assert [read_rhythm(text) for text in ("6h", "500", "500 steps", "2 Epochs", "1m")] == [
        "21600s", "500 steps", "500 steps", "2 epochs", "60s",
    ]  # fmt: skip
    for wrong in ("0", "0 epochs", "10ms", "often"):
        with pytest.raises(ValueError):  # noqa: PT011 - the words are the reader's
            read_rhythm(wrong)


def test_links_are_hidden() -> None:
    assert hide_addresses("no answer of https://hooks.example.org/abc/def?x=1: 404") == "no answer of [address] 404"


def test_the_same_is_not_told_twice_in_ten_minutes() -> None:
    sent, first = admit(SentMessages(), "a", 1000.0)
    assert first == Admission(send=True)
    sent, second = admit(sent, "a", 1001.0)
    assert not second.send
    assert admit(sent, "b", 1002.0)[1].send
    assert admit(sent, "a", 1000.0 + SAME_WITHIN_S)[1].send


def test_so_many_an_hour_and_the_rest_is_counted() -> None:
    sent = SentMessages()
    answers = []
    for number in range(MOST_AN_HOUR + 5):
        sent, answer = admit(sent, str(number), 1000.0 + number)
        answers.append(answer)
    assert [answer.send for answer in answers] == [True] * MOST_AN_HOUR + [False] * 5
    assert "more are left out" in answers[MOST_AN_HOUR - 1].words
    sent, later = admit(sent, "later", 1000.0 + AN_HOUR_S + 40)
    assert later == Admission(send=True, words="5 more suppressed since the last message", suppressed=5)
    assert sent.suppressed == 0
    # Nobody took it: the next one says the same.
    assert admit(withdraw(sent, "later", later), "again", 9000.0)[1] == later


def test_what_nobody_took_is_none_of_the_hour() -> None:
    sent, first = admit(SentMessages(), "0", 1000.0)
    assert first.send
    for number in range(2 * MOST_AN_HOUR):
        sent, answer = admit(sent, "broken", 1001.0 + number)
        assert answer.send
        sent = withdraw(sent, "broken", answer)
    assert [key for _, key in sent.sent] == ["0"]
    # One of the same key that was taken before stays.
    again, answer = admit(sent, "0", 1000.0 + SAME_WITHIN_S)
    assert withdraw(again, "0", answer).sent == sent.sent


def test_jobs_that_ended_hide_nothing_that_needs_a_person_now() -> None:
    sent = SentMessages()
    for number in range(MOST_AN_HOUR):
        sent, _ = admit(sent, str(number), 1000.0)
    assert not admit(sent, "ended", 1001.0)[1].send
    assert admit(sent, "disk", 1001.0, urgent=True)[1].send


def test_a_clock_that_was_set_back_silences_nobody() -> None:
    sent, _ = admit(SentMessages(), "a", 9000.0)
    assert admit(sent, "a", 100.0)[1].send
