"""The job of a run at a place, which may be anything: another account, or whoever broke in, can have written it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from holdfast.desk.orders.like import fetch_job
from holdfast.model import wire
from holdfast.model.errors import PlaceError
from holdfast.model.job import JobSpec
from holdfast.model.order import CodeRef
from holdfast.model.place import Place
from holdfast.model.record import replace

if TYPE_CHECKING:
    from holdfast.transfer.box import Box

pytestmark = pytest.mark.files
RUN = "20261123-101500-train-3fa2"
JOB = JobSpec("train", ("python3", "train.py"), ".", inputs=("../b", "/data"))
CODE = CodeRef("ab" * 8, 3, 100, "sub")


class Told:
    """A box that says this of the job of a run."""

    place = Place("gpu1")

    def __init__(self, **facts: object) -> None:
        self.answer: dict[str, Any] = {"run_id": RUN, "job": wire.encode(JOB), "code": wire.encode(CODE), **facts}

    def entry(self, name: str, words: tuple[str, ...], *, limit_s: float) -> dict[str, Any]:
        assert (name, words, limit_s > 0) == ("job", ("train",), True)
        return self.answer


def fetch(**facts: object) -> Any:
    return fetch_job(cast("Box", Told(**facts)), "train", keeps_setup=True)


def test_a_job_is_taken_as_it_is_told() -> None:
    found = fetch()
    assert (found.name, found.job, found.code) == (f"gpu1:{RUN}", JOB, CODE)


@pytest.mark.parametrize(
    "facts",
    [
        {"run_id": "../../x"},
        {"job": {"name": 3}},
        {"job": wire.encode(replace(JOB, inputs=("../../b",)))},
        {"job": wire.encode(replace(JOB, config="a/../../../etc/passwd"))},
        {"job": wire.encode(replace(JOB, workdir="..")), "code": None},
        {"code": wire.encode(replace(CODE, workdir="../.."))},
        {"code": wire.encode(replace(CODE, workdir="/home/anna"))},
        {"code": wire.encode(replace(CODE, workdir="~/x"))},
    ],
)
def test_what_leads_out_of_the_code_or_is_no_job_is_refused(facts: dict[str, object]) -> None:
    with pytest.raises(PlaceError, match="something else than the job of train"):
        fetch(**facts)
