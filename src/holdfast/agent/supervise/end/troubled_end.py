"""The end of an attempt that failed, was stopped or is in doubt: its verdict, `failure.md`, perhaps another attempt.

Most runs end well and never load it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.host.files.secret_files import read_known_values
from holdfast.model.run import Outcome

from .failure_note import judge_attempt, write_failure, write_verdict
from .retry import follow_up

if TYPE_CHECKING:
    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.model.finding import Finding
    from holdfast.model.run import Ended
    from holdfast.model.verdict import Verdict


class TroubledEnd:
    """The end of one attempt: a failure, a stop, or a success in doubt."""

    def __init__(self, context: SupervisorContext, ended: Ended, record: dict[str, object]) -> None:
        """Judge it. Before the exit record: what that says never changes."""
        self._context, self._ended = context, ended
        self._secrets = read_known_values(context.spec.secrets)
        self._judgement = judge_attempt(context.run_dir, context.attempt, ended, record=record, secrets=self._secrets)

    @property
    def verdict(self) -> Verdict | None:
        """Why it ended so, where that could be told."""
        return self._judgement.verdict

    def write_notes(self, findings: tuple[Finding, ...]) -> None:
        """Write the note for people; of a success in doubt the verdict alone.

        Raises:
            OSError: it cannot be written.
        """
        where = self._context.run_dir, self._context.attempt
        if self._ended.outcome is not Outcome.SUCCEEDED:
            write_failure(*where, self._ended, findings, self._judgement, secrets=self._secrets)
        else:
            write_verdict(*where, self._judgement)

    def follow_up(self) -> None:
        """Begin another attempt after a failure, if this one is to be repeated."""
        if self.verdict is not None and self._ended.outcome is Outcome.FAILED:
            follow_up(self._context, self._ended, self.verdict)
