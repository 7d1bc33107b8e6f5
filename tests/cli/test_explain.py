"""``holdfast explain``: gotchas, classes and Xids in words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from holdfast.cli.render.explain import RETRIES
from holdfast.cli.verbs import explain
from holdfast.model.verdict import FailureClass, LiveClass, RetryPolicy
from tests.cli.queues import say
from tests.each import each

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


def test_a_gotcha_is_told_with_what_is_done_about_it(holdfast: Command) -> None:
    done = holdfast("explain", "u11")
    assert done.code == 0
    assert done.out.startswith("U11: Memory on a card that belongs to nobody visible")
    for part in ("seen", "why", "signals", "holdfast (detected, remedied)", "to do", "source"):
        assert f"\n  {part}\n" in done.out


def test_what_is_not_done_yet_says_so(holdfast: Command) -> None:
    assert "Not yet: Kubernetes is not a platform of this version." in holdfast("explain", "K8S1").out


@pytest.mark.requirement("DOC-02")
def test_all_are_listed(holdfast: Command) -> None:
    value = json.loads(holdfast("explain", "--json").out)
    assert len(value["gotchas"]) == 68
    assert len(holdfast("explain").out.splitlines()) == 69


def test_a_search_without_a_hit_says_so_with_1(holdfast: Command) -> None:
    assert "U7" in holdfast("explain", "--search", "inode").out
    none = holdfast("explain", "--search", "quark")
    assert none.code == 1
    assert "no gotcha and no class has 'quark' in it" in none.err
    stall = holdfast("explain", "--search", "stall")
    assert (stall.out.splitlines()[0], "U29" in stall.out) == ("class stalled: holdfast explain stalled", False)


@pytest.mark.slow
@each("kind", [*FailureClass, *LiveClass], ids=lambda kind: kind.value)
def test_every_class_is_explained(kind: FailureClass | LiveClass, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.command.main([kind.value.replace("_", "-")], standalone_mode=False) == 0
    assert "to do" in capsys.readouterr().out


def test_a_class_is_explained_by_the_program(holdfast: Command) -> None:
    done = holdfast("explain", "out-of-memory")
    assert done.code == 0
    assert "to do" in done.out


def test_a_class_names_its_gotchas(holdfast: Command) -> None:
    value = json.loads(holdfast("explain", "out_of_memory", "--json").out)
    assert value["kind"] == "out_of_memory"
    assert value["retry"] == "never"
    assert "do not shrink the batch" in value["action"]


@pytest.mark.slow
def test_a_xid_is_explained(holdfast: Command) -> None:
    for words in (("xid", "79"), ("xid79",)):
        assert holdfast("explain", *words).out.startswith("Xid 79: ")
    unknown = json.loads(holdfast("explain", "xid 4999", "--json").out)
    assert unknown["xid"]["code"] == 4999


def test_an_unknown_topic_is_a_usage_error_with_a_way_on(holdfast: Command) -> None:
    done = holdfast("explain", "U99")
    assert done.code == 66
    assert "there is no topic 'U99'" in done.err
    assert "holdfast explain --search" in done.err
    assert holdfast("explain", "U11", "--search", "x").code == 64


def test_a_class_is_not_found_within_another_word(holdfast: Command) -> None:
    """`stalled` stands in "installed", and the pattern of a class names a gotcha that does not name the class."""
    assert json.loads(holdfast("explain", "stalled", "--json").out)["gotchas"] == []
    assert json.loads(holdfast("explain", "deadlock", "--json").out)["gotchas"] == []
    assert "U9" in json.loads(holdfast("explain", "out_of_memory", "--json").out)["gotchas"]


@pytest.mark.parametrize("words", [("31",), ("xid", "=", "31"), ("xid",)], ids=" ".join)
def test_a_bare_number_is_told_how_to_ask_for_a_xid(holdfast: Command, words: tuple[str, ...]) -> None:
    done = holdfast("explain", *words)
    assert done.code == 66
    assert f"holdfast explain xid {31 if '31' in words else 79}" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("78",), "a check before the start said no"),
        (("exit", "code", "71"), "nobody witnessed the job's end"),
        (("137",), "SIGKILL: killed without a chance to react"),
        (("exit 3",), "the job's own"),
    ],
    ids=str,
)
def test_an_exit_code_is_explained(words: tuple[str, ...], said: str) -> None:
    done = say("explain", *words)
    assert done.code == 0
    assert said in done.out
    number = "".join(filter(str.isdigit, " ".join(words)))
    assert done.out.startswith(f"exit code {number}\n")
    assert f"holdfast explain xid {number}" in done.err
    assert say("explain", *words, "--json").json()["exit_code"]["code"] == int(number)


def test_what_is_no_exit_code_is_not_explained_as_one() -> None:
    assert say("explain", "exit 999").code == 66


def test_several_words_to_search_for_are_told_to_be_quoted(holdfast: Command) -> None:
    done = holdfast("explain", "--search", "full", "disk")
    assert done.code == 64
    assert "holdfast explain --search 'full disk'" in done.err


@each("policy", list(RetryPolicy))
def test_whether_it_is_tried_again_by_itself_is_said_in_words(policy: RetryPolicy) -> None:
    assert "_" not in RETRIES[policy.value].replace("out_of_memory", "")
    assert (policy in (RetryPolicy.NEVER, RetryPolicy.WHEN_ALONE)) == RETRIES[policy.value].startswith("no, ")
