"""What a box answers about a secret is a stranger's text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from holdfast.desk.secrets import check_secret
from holdfast.model.errors import InternalError
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
