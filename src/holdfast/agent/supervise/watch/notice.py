"""A provider's notice that it takes the machine back, at an address that the place's profile names (SPOT-04).

Only where `Profile.notice` is an ``http://`` address (providers answer at link-local ones) there is a watch. Each look
is one request in a disposable child with a limit. An answer 200 with a body is the notice; 404, an empty body and no
answer are none: what cannot be read ends no run. The stop is then the ordinary one.

Source: AWS EC2 user guide, "Spot Instance interruption notices" (``/latest/meta-data/spot/instance-action``: 404 until
there is one, looked at every 5 s); Google's ``/instance/preempted`` answers TRUE or FALSE.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from holdfast.core.run.events import StopWanted
from holdfast.model.run import StopCause, StopRequest

if TYPE_CHECKING:
    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.agent.supervise.loop import Child

EVERY_S = 5.0
LIMIT_S = 2.0
MOST_BYTES = 4096
NO_NOTICE = frozenset({"", "false", "none", "no"})
HEADERS = {"Metadata-Flavor": "Google", "Metadata": "true"}
"""What Google's and Azure's endpoints ask for; the others pass over it."""


class NoticeWatch:
    """Asks for the notice now and then, until there is one."""

    def __init__(self, context: SupervisorContext, every_s: float = EVERY_S) -> None:
        """Nothing is asked before `begin`."""
        self._context, self._every_s = context, every_s
        self._child: Child | None = None
        self._url = "" if context.profile is None else context.profile.notice

    def begin(self) -> None:
        """Ask from now on, where there is an address."""
        if self._url.startswith("http://"):
            self._context.loop.timers.arm(self, self._every_s, self._look)

    def end(self) -> None:
        """No more questions."""
        self._context.loop.timers.disarm(self)
        if self._child is not None:
            self._child.abandon()
            self._child = None

    def _look(self) -> None:
        try:
            url = self._url
            self._child = self._context.loop.run_child(
                lambda: ask(url), self._take, self._take_nothing, within_s=LIMIT_S
            )
        except OSError:
            self.begin()

    def _take_nothing(self, _why: str) -> None:
        self._child = None
        self.begin()

    def _take(self, said: object) -> None:
        self._child = None
        if not said:
            self.begin()
            return
        self._context.recorder.event("provider_notice", said=str(said)[:200])
        request = StopRequest(StopCause.PREEMPTION, "the provider's notice", detail=str(said)[:200])
        self._context.emit(StopWanted(request))


def ask(url: str) -> str:
    """The words of a notice; empty when there is none, or nothing that can be read."""
    client = import_module("http.client")  # in the child alone: no supervisor carries it
    host, slash, path = url.removeprefix("http://").partition("/")
    link = client.HTTPConnection(host, timeout=LIMIT_S)
    try:
        link.request("GET", slash + path or "/", headers=HEADERS)
        answer = link.getresponse()
        text: str = answer.read(MOST_BYTES).decode("utf-8", "replace").strip()
        return text if answer.status == 200 and text.lower() not in NO_NOTICE else ""
    except (OSError, ValueError, client.HTTPException):
        return ""
    finally:
        link.close()
