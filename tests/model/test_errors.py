"""Each error says how it is to be taken, and the codes are those that scripts rely on."""

from __future__ import annotations

import re

import pytest

from holdfast.model import errors
from holdfast.model.errors import Blame, HoldfastError

pytestmark = pytest.mark.pure

KINDS = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, HoldfastError)]


@pytest.mark.requirement("PROC-25")
def test_each_reaction_has_a_code_of_its_own() -> None:
    kinds = [kind for kind in KINDS if kind is not HoldfastError]
    assert len({kind.code for kind in kinds}) == len(kinds)
    # What is a kind of another is answered as that is; of the others only two share a code.
    roots = {kind: kind.exit_code for kind in kinds if kind.__mro__[1] is HoldfastError}
    shared = [kind.__name__ for kind, code in roots.items() if list(roots.values()).count(code) > 1]
    assert sorted(shared) == ["ResultMissing", "Taken"]
    for kind in set(kinds) - set(roots):
        parent = kind.__mro__[1]
        assert issubclass(parent, HoldfastError)
        # A name that nobody answers to has the code of a run that there is not.
        assert kind.exit_code == (66 if kind is errors.NoSuchName else parent.exit_code), kind


def test_every_error_is_found_by_its_code() -> None:
    assert set(errors.list_errors().values()) >= set(KINDS)
    assert errors.list_errors()["cut_off"] is errors.CutOff


def test_the_drawn_tree_is_the_real_one() -> None:
    drawn = re.findall(r"[├└]── (\w+) +(\d+) ", errors.__doc__ or "")
    assert {(name, int(code)) for name, code in drawn} == {
        (kind.__name__, kind.exit_code) for kind in KINDS if kind is not HoldfastError
    }


def test_an_error_carries_its_hint_and_details() -> None:
    error = errors.ResourceBusy("card 0 is taken", hint="wait for it", details={"card": 0})
    assert (str(error), error.hint, error.details) == ("card 0 is taken", "wait for it", {"card": 0})
    assert (error.exit_code, error.transient, error.blame) == (75, True, Blame.ENVIRONMENT)
    assert errors.UsageError("x").details == {}
