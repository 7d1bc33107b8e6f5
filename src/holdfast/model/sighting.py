"""What was last seen of a run, by whom and when: an observation, which is not the run's state."""

from __future__ import annotations

from enum import Enum

from .record import field, record


class Reach(str, Enum):
    """How a run's directory can be reached from here at the moment."""

    HERE = "here"
    UNREACHABLE = "unreachable"
    COPY = "copy"


@record
class Sighting:
    """One look at one run. `seen_at` is ISO UTC by the desk's clock; `by` is ``agent``, ``scheduler`` or ``desk``.

    `condition` is a condition as `holdfast ls` shows it. `row` is what `ls --json` prints of the run (None where only
    its existence is known). `reason` says why it could not be seen where `reach` is not ``here``. `last_there` is when
    a run was there last that is not there any more.
    """

    place: str
    run_id: str
    seen_at: str
    by: str
    reach: Reach
    condition: str
    ended: bool = False
    exit_code: int | None = None
    desired: str | None = None
    row: dict[str, object] | None = None
    reason: str = ""
    last_there: str = ""


@record
class Poll:
    """One batched look at a place, begun `at` (ISO UTC, the desk's clock).

    `absent` are runs that were asked for and are not there: absent is not ended. `missing_roots` are directories of
    runs that could not be read there: nothing follows for what was in them. `complete`: the place has no other runs.
    `unreachable` says why nothing could be seen; then nothing is known of any run, and `why` is the class of the
    failure (``dns``, ``timed out`` ..., else the error's code). `notice` is a sentence for people about what was left
    out. `known` is how many runs the place has, by its own words; None where single ones were asked for.
    """

    place: str
    at: str
    sightings: dict[str, Sighting] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    missing_roots: tuple[str, ...] = ()
    complete: bool = False
    unreachable: str | None = None
    why: str = ""
    notice: str = ""
    known: int | None = None
