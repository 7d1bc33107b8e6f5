"""The names of the lifecycle's states, in the order in which a run goes through them."""

from __future__ import annotations

PHASES = ("created", "preflight", "waiting", "starting", "running", "stopping", "finalizing", "ended")
