"""What a box answers about a secret is a stranger's text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from holdfast.desk.secrets import check_secret, push_value
from holdfast.model.errors import InternalError, UsageError
from holdfast.model.place import Place

if TYPE_CHECKING:
    from holdfast.transfer.box import Box

pytestmark = pytest.mark.pure


class Stranger:
    """A box that answers anything."""

    place = Place("gpu1", host="gpu1")

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer

    def entry(self, *_: object, **__: object) -> dict[str, Any]:
        return self.answer


@pytest.mark.parametrize("answer", [{}, {"status": "x"}, {"status": None}, {"status": [200]}])
def test_a_status_that_is_none_is_an_error_with_words(answer: dict[str, Any]) -> None:
    with pytest.raises(InternalError, match="gpu1: its answer was not understood"):
        check_secret(cast("Box", Stranger(answer)), "HF_TOKEN", "https://example.org")


@pytest.mark.requirement("XPORT-14")
def test_XPORT_14_a_private_key_of_ssh_is_not_sent_as_a_secret() -> None:
    box = cast("Box", Stranger({"replaced": False}))
    with pytest.raises(UsageError, match=r"private key of ssh.*nothing was sent"):
        push_value(box, "KEY", b"\n-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n")
    account = b'{"private_key": "-----BEGIN PRIVATE KEY-----"}'
    assert push_value(box, "GOOGLE", account) == {"replaced": False}, "a credential of a cloud has a key within"
