"""A lease that is held, with its public record: other accounts see by it who has the cards, since when, by what right.

A record that cannot be written (a full disk) costs the job nothing: it is said once, and tried again until it can be,
or until the lease ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.host.lease.area import LeaseArea
    from holdfast.host.lease.leases import HeldLease
    from holdfast.model.lease import LeaseRecord

REPUBLISH_S = 5.0
"""After a record could not be renewed: without it processes that closed the lock are not seen by others."""


class PublishedLease:
    """The lease and its record; `record` is what ours says, also while that could not be written."""

    def __init__(self, held: HeldLease, context: SupervisorContext) -> None:
        """`held` is published already."""
        self._held, self._context = held, context
        self._unpublished: LeaseRecord | None = None

    @property
    def fds(self) -> tuple[int, ...]:
        """The lock descriptors that keeper and job must inherit."""
        return self._held.fds

    @property
    def area(self) -> LeaseArea:
        """Where it is published."""
        return self._held.area

    @property
    def record(self) -> LeaseRecord:
        """Our record as it is, or as it would be if it could have been published."""
        return self._unpublished or self._held.record

    @property
    def is_public(self) -> bool:
        """Whether everybody can read `record`."""
        return self._unpublished is None

    def renew(self, record: LeaseRecord) -> None:
        """Have the record say this from now on."""
        if record == self._held.record:
            return
        try:
            self._held.update(record)
        except HoldfastError as error:
            if self._unpublished is None:
                self._context.recorder.event("lease_record_stale", reason=str(error))
                self._context.notify("lease_record_stale", reason=str(error))
            self._unpublished = record
            self._context.loop.timers.arm("lease_record", REPUBLISH_S, self._try_again)
            return
        if self._unpublished is not None:
            self._context.recorder.event("lease_record_renewed")
            self._unpublished = None

    def _try_again(self) -> None:
        if self._unpublished is not None:
            self.renew(self._unpublished)

    def release(self) -> None:
        """Give the cards back."""
        self._context.loop.timers.disarm("lease_record")
        self._unpublished = None
        self._held.release()
