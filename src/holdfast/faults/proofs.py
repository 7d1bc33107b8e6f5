"""Proves that a fault happened, from facts that nobody judged: wait statuses, errnos, counters, states."""

from __future__ import annotations

from holdfast.model import wire

from .box import Sandbox, list_descendants, read_oom_kills, read_states, read_text
from .spec import Fault, FaultProof, ProofKind


class ProofReader:
    """Looks at one run; remembers the host's counter from before it."""

    def __init__(self, fault: Fault, box: Sandbox) -> None:
        self._fault, self._box = fault, box
        self._oom_kills_before = read_oom_kills()

    def sort(self) -> tuple[list[str], list[str]]:
        """The proofs in words: those that hold now, and those that do not."""
        holding, missing = [], []
        for proof in self._fault.proofs:
            found = self._look(proof)
            words = f"{proof.seen.value} {proof.value}"
            if found:
                holding.append(f"{words} ({found})" if found not in words else words)
            else:
                missing.append(words)
        return holding, missing

    def all_hold(self) -> bool:
        """Whether the fault is there."""
        return all(self._look(proof) for proof in self._fault.proofs)

    def _look(self, proof: FaultProof) -> str:
        """What was seen; empty when the proof does not hold."""
        seen = proof.seen
        if seen is ProofKind.STATE:
            return self._look_at_states(proof.value)
        if seen is ProofKind.WORDS:
            return proof.value if proof.value in read_text(f"{self._box.attempt_dir}/{wire.OUTPUT}") else ""
        if seen in (ProofKind.MARK, ProofKind.ERRNO):
            return proof.value if proof.value in read_text(f"{self._box.directory}/marks").split() else ""
        if seen is ProofKind.OOM_KILL:
            return self._look_at_counters()
        record = self._box.read(wire.EXIT)
        if seen is ProofKind.ENDING:
            return proof.value if proof.value in str(record.get("ending")) else ""
        status = record.get("status") or {}
        values: dict[ProofKind, object] = {
            ProofKind.SIGNAL: status.get("signal"),
            ProofKind.CODE: status.get("code"),
            ProofKind.OUTCOME: record.get("outcome"),
        }
        return proof.value if str(values.get(seen)) == proof.value else ""

    def _look_at_states(self, wanted: str) -> str:
        job = self._box.job()
        if job is None:
            return ""
        states = read_states([job.pid, *list_descendants(job.pid)])
        return f"{states.count(wanted)} of {len(states)} threads" if wanted in states else ""

    def _look_at_counters(self) -> str:
        usage = self._box.read(wire.EXIT).get("usage") or {}
        if usage.get("oom_kills"):
            return "the run's group"
        # The host's counter may be a neighbour's, so it counts only where the group has none.
        if usage.get("oom_kills") is None and read_oom_kills() > self._oom_kills_before >= 0:
            return "the host"
        return ""
