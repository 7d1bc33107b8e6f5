"""`run()`: how a script begins a training that survives. It takes the settings; `session.Run` is what comes of them."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .session import Run


def run(  # noqa: PLR0913 - each is a setting that a script may want, all by name
    directory: str | os.PathLike[str] | None = None,
    *,
    every: str | int | None = "auto",
    keep_last: int = 2,
    keep_best: int = 0,
    metric: str = "loss",
    mode: str = "min",
    seed: int | None = None,
    deterministic: bool = False,
    time_limit: float | str | None = None,
    mirror: str | os.PathLike[str] | None = None,
    on_nonfinite: str = "warn",
    on_save_failure: str = "continue",
    asynchronous: bool = True,
    extend: bool = False,
) -> Run:
    """A training run that survives; use it as ``with training.run(...) as run``.

    Args:
        directory: Where checkpoints are; without it ``HOLDFAST_CHECKPOINT_DIR``, else ``checkpoints``.
        every: How often to save: ``"auto"`` (from the measured time of a save), steps (``500``), time (``"10m"``),
            None (only at the end and when asked).
        keep_last: So many of the newest checkpoints are kept; with 1 the old one goes when the new one is durable.
        keep_best: So many of the best ones are kept too, at most 3.
        metric: The logged value that says which is best.
        mode: ``"min"`` or ``"max"`` of `metric`.
        seed: Seeds python, numpy and torch; a checkpoint that was made with another seed is refused.
        deterministic: Ask torch for deterministic algorithms.
        time_limit: After so many seconds (or ``"2h"``) to save and leave; the supervisor's and Slurm's deadlines are
            known anyway.
        mirror: A second directory on storage that outlives this machine; each checkpoint is copied and proven there.
        on_nonfinite: What a NaN or infinite logged value does: ``"warn"``, or ``"stop"``: ends the run with an error.
        on_save_failure: What a save that failed does: ``"continue"``, or ``"stop"``: leave with 143.
        asynchronous: Save in a process of its own; False: the loop waits until a save is durable.
        extend: Go on with a training that ended itself early (`Run.finish` in the body of its loop).

    Raises:
        ValueError: an argument makes no sense.
    """
    # Most of the library is loaded by whoever begins a run, not by whoever imports the script that does: the workers
    # of a loader import it again, each for itself.
    from . import session, settings  # lazy: what a run needs is loaded when one begins
    from .box import environment  # lazy: what a run needs is loaded when one begins

    context = environment.read_context(os.environ)
    where = settings.choose_directory(directory, context)
    chosen = settings.Settings(
        directory=where,
        every=settings.choose_every(every, context),
        keep=settings.choose_retention(context, keep_last, keep_best, metric, mode),
        seed=seed,
        deterministic=deterministic,
        time_limit_s=settings.choose_time_limit(time_limit),
        mirror=settings.choose_mirror(mirror, context, where),
        stop_on=settings.choose_stops(on_nonfinite, on_save_failure),
        asynchronous=asynchronous,
        extend=extend,
    )
    return session.Run(chosen, context)
