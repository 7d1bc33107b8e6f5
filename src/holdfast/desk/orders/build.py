"""A job that was read at the desk becomes an `Order`: no path of the desk, nothing of its environment, no secret."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.core.digest import sha256_hex
from holdfast.core.job.job_hash import hash_job
from holdfast.core.job.redact import redact_argv
from holdfast.core.job.secret_names import read_uses
from holdfast.core.profile.variables import for_box, list_hooks
from holdfast.core.refuse_secrets import refuse_secrets
from holdfast.desk.author import find_desk, find_user
from holdfast.desk.profiles.read import load_profile
from holdfast.host.clock import utc_now
from holdfast.model.errors import UsageError
from holdfast.model.order import CodeRef, Order
from holdfast.model.record import field, record
from holdfast.transfer.code.tree import read_tree

from .paths import DeskPath, relate_paths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.model.job import JobSpec
    from holdfast.model.place import Place
    from holdfast.model.profile import Profile
    from holdfast.transfer.code.tree import CodeTree

PUSH_HINT = "holdfast secret push PLACE NAME, and --secret NAME (in a job file: secrets: [NAME])"


@record
class Draft:
    """A job on its way: as it goes into the order, its hash, and the code that goes along (None: none does).

    `native` are the place's options of its own scheduler, if it has one; those of the job stand over them.
    `after` is as in `Order`. `there` is code that the place has already, where none goes along.
    """

    job: JobSpec
    job_sha256: str
    tree: CodeTree | None
    native: dict[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    there: CodeRef | None = None

    @property
    def code(self) -> CodeRef | None:
        """The code that the job runs; None: there is none of a desk."""
        return self.there if self.tree is None else self.tree.ref

    @property
    def order_sha256(self) -> str:
        """What tells this order from others: the same job with other options is another."""
        beside = [*sorted({**self.native, **self.job.slurm}.items()), *self.after]
        return sha256_hex(f"{self.job_sha256} {beside}".encode()) if beside else self.job_sha256

    @property
    def tree_hash(self) -> str:
        """The hash of the tree that the job runs; empty without."""
        return "" if self.code is None else self.code.tree


def draft_job(job: JobSpec, environ: Mapping[str, str], *, send_code: bool) -> Draft:
    """The job with the tree around its working directory, which git's tree is when it is in one.

    A working directory that is the box's own (absolute, or from ``~`` or ``$NAME``) is there already: nothing is sent.

    Raises:
        JobFileError, UsageError: a path leads out of the tree, the tree cannot be sent, or the job holds a secret.
    """
    refuse_secrets(job, hint=PUSH_HINT)
    tree = read_tree(str(job.workdir), environ) if send_code and isinstance(job.workdir, DeskPath) else None
    related = relate_paths(job, None if tree is None else find_top(job.workdir, tree.ref.workdir))
    return Draft(related, hash_job(related), tree)


def find_top(workdir: str, inside: str) -> str:
    """The top of the tree in which `workdir` is at `inside`."""
    real = os.path.realpath(workdir)
    if not inside or inside == ".":
        return real
    if not real.endswith(f"/{inside}"):
        raise UsageError(f"{workdir} is not at {inside} of its tree", hint="name the real directory with --workdir")
    return real[: -len(inside) - 1]


def find_profile(place: Place) -> Profile | None:
    """What goes along of the place's profile; None where it has none.

    Raises:
        UsageError, NotPermitted, StorageError: the profile is not there, or is wrong.
    """
    return for_box(load_profile(place.profile)) if place.profile else None


def list_setup(place: Place) -> tuple[str, ...]:
    """The lines of sh before each job of a place: the hook of its profile, then its own.

    Raises:
        UsageError, NotPermitted, StorageError: as of `find_profile`.
    """
    return (*list_hooks(find_profile(place)), *place.setup)


def build_order(draft: Draft, place: Place, *, run_id: str, bundle: str, argv: Sequence[str]) -> Order:
    """The order of a draft for a place; `argv` is the command line of holdfast, redacted here.

    Raises:
        UsageError, NotPermitted, StorageError: as of `find_profile`.
    """
    return Order(
        run_id=run_id,
        job=draft.job,
        job_sha256=draft.job_sha256,
        bundle=bundle,
        code=draft.code,
        secrets=tuple(use.name for use in read_uses(draft.job.secrets)),
        setup=list_setup(place),
        env_from=place.env_from,
        argv=redact_argv(argv)[0],
        by=find_user(),
        desk=find_desk(),
        created_at=utc_now(),
        place=place.name,
        native=draft.native,
        after=draft.after,
        profile=find_profile(place),
    )
