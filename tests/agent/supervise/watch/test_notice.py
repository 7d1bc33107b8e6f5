"""A provider's notice is asked for where the profile has an address, within a limit, and ends a run as stops do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from holdfast.agent.supervise.timers import Timers
from holdfast.agent.supervise.watch.notice import NoticeWatch, ask
from holdfast.core.run.events import StopWanted
from holdfast.model.profile import Profile
from holdfast.model.run import StopCause
from tests.status_endpoint import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.agent.supervise.context import SupervisorContext

pytestmark = [pytest.mark.files, pytest.mark.requirement("SPOT-04")]


class Context:
    """What of a supervisor's context is needed here; a child's work is done at once."""

    def __init__(self, notice: str | None) -> None:
        """`notice` is that of the profile; None: there is no profile."""
        self.profile = None if notice is None else Profile("rental", "A rental", notice=notice)
        self.recorder, self.loop, self.timers = self, self, Timers()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.emitted: list[StopWanted] = []

    def run_child(
        self, work: Callable[[], object], then: Callable[[object], None], _on_fail: object, *, within_s: float
    ) -> None:
        assert within_s <= 2
        then(work())

    def event(self, event: str, **data: object) -> None:
        self.events.append((event, data))

    def emit(self, event: StopWanted) -> None:
        self.emitted.append(event)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.end()


def test_404_then_200_asks_for_the_ordinary_stop_once(endpoint: Endpoint) -> None:
    endpoint.answers = [(404, b""), (500, b"oops"), (200, b"FALSE"), (200, b'{"action": "terminate"}')]
    context = Context(endpoint.url)
    watch = NoticeWatch(cast("SupervisorContext", context), every_s=0.0)
    watch.begin()
    for _ in range(3):
        context.timers.run_due()
        assert not context.emitted
    context.timers.run_due()
    [stop] = context.emitted
    assert (stop.request.cause, stop.request.force) == (StopCause.PREEMPTION, False)
    assert context.events == [("provider_notice", {"said": '{"action": "terminate"}'})]
    assert not context.timers.is_armed(watch)
    assert endpoint.asked == 4


@pytest.mark.parametrize("notice", [None, "", "none", "SIGTERM, then SIGKILL, of a spot pod", "file:///etc/hosts"])
def test_without_an_address_nothing_is_asked(notice: str | None) -> None:
    context = Context(notice)
    watch = NoticeWatch(cast("SupervisorContext", context))
    watch.begin()
    assert not context.timers.is_armed(watch)


def test_what_gives_no_answer_is_no_notice() -> None:
    assert ask("http://127.0.0.1:1/latest") == ""
    assert ask("http://[::1/latest") == ""
