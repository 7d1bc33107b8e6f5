"""What a person said to ``holdfast run`` beside the job itself."""

from __future__ import annotations

from holdfast.model.order import CodeRef
from holdfast.model.record import record


@record
class RunWish:
    """How a job is to be started. `place` None: here.

    `run_id` and `send_code` are for places alone, `asks_slurm` (options of sbatch were typed) and `after` (as in
    `Order`) for those of kind slurm. `code` is code that the place has already, where none is sent.
    """

    job_file: str | None
    detach: bool
    prove_s: float
    runs: str | None
    dry_run: bool
    as_json: bool
    place: str | None = None
    run_id: str | None = None
    send_code: bool = True
    asks_slurm: bool = False
    after: tuple[str, ...] = ()
    code: CodeRef | None = None
