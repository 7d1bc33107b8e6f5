"""What a job writes for its image and its binds: read, judged, written for a runtime. Pure.

Source for references: distribution/reference (docker), "[HOST/]NAME[:TAG][@DIGEST]"; for files: apptainer, SIF.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable

from holdfast.model.container import INNER_ROOM
from holdfast.model.pattern import compile_later
from holdfast.model.record import record

FILE_ENDINGS = (".sif", ".simg", ".img", ".sqsh")
REGISTRY = "docker://"
APPTAINER_SCHEMES = ("library://", "oras://", "shub://")
SCHEMES = (REGISTRY, *APPTAINER_SCHEMES)
OWN_TARGETS = ("/proc", "/sys", INNER_ROOM)
"""Where nothing of the job's may be: the kernel's own file systems, and our room."""
_NAME = compile_later(
    r"(?P<name>[a-z0-9A-Z][a-z0-9A-Z._-]*(?::\d{1,5}(?=/))?(?:/[a-z0-9][a-z0-9._-]*)*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_ID = compile_later(r"(?:sha256:)?[0-9a-f]{64}", re.ASCII)


@record
class ImageReference:
    """An image as it was written: a file's path, or a name with tag and digest. `scheme` as written, or empty."""

    text: str
    scheme: str = ""
    path: str = ""
    name: str = ""
    tag: str = ""
    digest: str = ""

    @property
    def is_file(self) -> bool:
        """Whether it is a file."""
        return bool(self.path)

    @property
    def is_moving(self) -> bool:
        """Whether the same words may be another image tomorrow."""
        return not self.path and not self.digest

    @property
    def is_of_box(self) -> bool:
        """Whether no registry has it under this name: an image's own id, or the name of one that was made on a box."""
        return self.name.startswith("localhost/") or _ID.fullmatch(self.name) is not None

    @property
    def repository(self) -> str:
        """The name with its registry, as a runtime completes it. Source: distribution/reference, splitDockerDomain."""
        host, slash, rest = self.name.partition("/")
        if not slash or not (set(host) & set(".:") or host == "localhost"):
            host, rest = "docker.io", self.name
        return f"{host}/{rest if '/' in rest or host != 'docker.io' else f'library/{rest}'}"


def looks_like_file(text: str) -> bool:
    """Whether an image is meant as a path."""
    return "://" not in text and (text.startswith(("/", ".", "~", "$")) or text.lower().endswith(FILE_ENDINGS))


def read_reference(text: str) -> ImageReference:
    """The reference in `text`.

    Raises:
        ValueError: it is none; the message goes after the key's name.
    """
    if looks_like_file(text):
        return ImageReference(text, path=text)
    scheme = next((known for known in SCHEMES if text.startswith(known)), "")
    rest = text.removeprefix(scheme)
    if "://" in rest:
        raise ValueError(f"{text[:80]!r}: an image is a name, a file, or {', '.join(SCHEMES)}...")
    if _ID.fullmatch(rest):
        # An image's own id names one image, as a digest does.
        return ImageReference(text, scheme, name=rest, digest=f"sha256:{rest[-64:]}")
    found = _NAME.fullmatch(rest)
    if found is None:
        raise ValueError(f"{text[:80]!r} is not an image: NAME[:TAG][@sha256:...], or the path of a file")
    return ImageReference(text, scheme, "", found["name"], found["tag"] or "", found["digest"] or "")


@record
class Bind:
    """A directory or file of the box and where it is inside; read-only unless `writable`."""

    source: str
    target: str
    writable: bool = False

    def __str__(self) -> str:
        """As it is recorded."""
        return f"{self.source}:{self.target}:{'rw' if self.writable else 'ro'}"


def read_bind(text: str) -> Bind:
    """The bind in ``SOURCE[:TARGET[:ro|rw]]``; without a target it is the source.

    Raises:
        ValueError: it is none.
    """
    parts = text.split(":")
    writable = parts[-1] == "rw"
    if len(parts) > 1 and parts[-1] in ("ro", "rw"):
        parts = parts[:-1]
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise ValueError(f"{text[:80]!r} is not SOURCE[:TARGET[:ro|rw]]")
    source, target = parts[0], parts[-1]
    if len(parts) == 1 and not source.startswith("/"):
        raise ValueError(f"{text[:80]!r}: where it is inside has to be said: {source}:/data")
    inside = _normalize(target)
    if not target.startswith("/") or inside == "/":
        raise ValueError(f"{text[:80]!r}: the place inside is an absolute path below /")
    if "\n" in text or "\r" in text:
        raise ValueError(f"{text[:80]!r}: a line break in a path is not taken by the runtimes")
    if _is_below(inside, OWN_TARGETS):
        raise ValueError(f"{text[:80]!r}: {target} is the container's own; choose another place inside")
    return Bind(source, inside, writable)


def find_inside(path: str, binds: Iterable[Bind], *, to_write: bool) -> str | None:
    """Where a path of the box is inside, by the longest bind that has it; None where it is not, or cannot be written.

    Another bind may lie over it there, which is then another directory: it is not inside.
    """
    wanted = _normalize(path)
    having = [bind for bind in binds if _is_below(wanted, (_normalize(bind.source),))]
    if not having:
        return None
    best = max(having, key=lambda bind: (len(_normalize(bind.source)), bind.writable))
    inside = best.target + wanted[len(_normalize(best.source)) :]
    hidden = any(len(bind.target) > len(best.target) and _is_below(inside, (bind.target,)) for bind in binds)
    return None if hidden or (to_write and not best.writable) else inside


def _normalize(path: str) -> str:
    """As `normpath`, which keeps two slashes at the beginning; Linux takes them for one."""
    return posixpath.normpath(f"/{path.lstrip('/')}" if path.startswith("/") else path)


def _is_below(path: str, tops: tuple[str, ...]) -> bool:
    return any(path == top or path.startswith(f"{top}/") for top in tops)


def is_card_device(path: str) -> bool:
    """Whether a path is, or holds, a device of a card: those come from the lease alone."""
    normal = _normalize(path)
    return normal in ("/", "/dev", "/dev/dri", "/dev/kfd") or normal.startswith(("/dev/nvidia", "/dev/dri/"))
