"""A job's container: what the job asks for, what that came to on a box, and the container of one attempt."""

from __future__ import annotations

from enum import Enum

from .identity import ProcessId
from .record import field, record

IMAGE_RECORD = "image.json"
"""In the attempt's directory: `ResolvedImage`, committed by preflight."""
CONTAINER_RECORD = "container.json"
"""In the attempt's directory: `ContainerRecord`, committed when it is created and when its first process is known."""
ROOM = "container"
"""Directory of the attempt that is mounted into the container as `INNER_ROOM`."""
INNER_ROOM = "/run/holdfast"
GATE, HELD, SAID, INNER_STATUS, ENTER_SH, ENTER_PY = "gate", "held", "said", "status", "enter.sh", "enter.py"
"""Files of the room: the FIFO that holds the command, the FIFO that is held open from outside as long as anybody lives
who can end the container, what the first program said, how the command ended, programs."""
INNER_HOME = "HOLDFAST_INNER_HOME"
"""By which `ENTER_SH` is told the job's HOME where the runtime takes none from its caller (Apptainer)."""
QUESTION, ANSWER = "framework.py", "framework"
"""Files of the room: the program by which torch is asked for the cards, and what it said."""
SETTINGS = frozenset(
    {"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CONTAINER_HOST", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF",
     "XDG_RUNTIME_DIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"}
)  # fmt: skip
"""Where the clients of the runtimes look for sockets, contexts and stores. Source: docker(1), podman(1)."""
LABEL_RUN, LABEL_ATTEMPT, LABEL_DIRECTORY = "holdfast.run", "holdfast.attempt", "holdfast.run-directory"


class RuntimeName(str, Enum):
    """What starts containers; AUTO takes the first that has the image, and says why."""

    AUTO = "auto"
    PODMAN = "podman"
    DOCKER = "docker"
    APPTAINER = "apptainer"
    SINGULARITY = "singularity"


FOR_FILES = (RuntimeName.APPTAINER, RuntimeName.SINGULARITY)
"""Those whose image is a file, and whose containers are our own descendants under our own account."""


class ContainerUser(str, Enum):
    """Who the job is inside: the account that it has here, or the image's own user."""

    HOST = "host"
    IMAGE = "image"


class EntryPoint(str, Enum):
    """What becomes of the image's entry point: it is left out, or it gets the command."""

    CLEAR = "clear"
    KEEP = "keep"


@record
class ContainerSpec:
    """The container that a job asks for; without an `image` it runs on the box as it is.

    `image` is a reference or the path of an image file; `binds` are ``SOURCE:TARGET:ro`` or ``:rw``; `shm_bytes` None
    is as large as the box's; `env` are variables of the caller that go in.
    """

    image: str | None = None
    runtime: RuntimeName = RuntimeName.AUTO
    binds: tuple[str, ...] = ()
    shm_bytes: int | None = None
    user: ContainerUser = ContainerUser.HOST
    entrypoint: EntryPoint = EntryPoint.CLEAR
    init: bool = True
    network: str = "host"
    env: tuple[str, ...] = ()
    moving_tag: bool = False


@record
class ResolvedImage:
    """Which runtime takes which image, and why.

    `program` is the runtime's command; `reference` what it is given, pinned; `digest` is ``sha256:...`` of the
    manifest, of the configuration where there is no manifest (an import), or of the file's content where it is one
    (empty: not taken, the file is large). `entrypoint`, `environment` and `user` are the image's own.
    `rootless`: the runtime has no rights of root here; `own_group`: it makes a control group and holds limits by it;
    `init`: it has a first program that reaps; `unheld`: the limits that it would leave out, with a warning, because its
    kernel has nothing to hold them by.
    """

    runtime: RuntimeName
    program: str
    image: str
    reference: str
    digest: str
    why: str = ""
    entrypoint: tuple[str, ...] = ()
    environment: dict[str, str] | None = None
    user: str = ""
    rootless: bool = False
    own_group: bool = True
    init: bool = True
    version: str = ""
    unheld: tuple[str, ...] = ()


@record
class ContainerRecord:
    """The container of one attempt, as its runtime knows it.

    `init` is its first process as this box sees it, None until it was found; `groups` are the directories of its own
    control group, empty where it has none; `opened`: the gate was opened, so the command runs or ran. `settings` are
    the variables by which its caller steered the runtime: without them another socket or store would be asked.
    `outlived`: its client was killed, because it did not leave when all inside had ended, or while nobody supervised
    and the command went on: its end says nothing. `lost`: its client has left before the container, which goes on
    without it.
    """

    runtime: RuntimeName
    program: str
    id: str
    name: str
    image: str
    digest: str
    init: ProcessId | None = None
    groups: tuple[str, ...] = ()
    opened: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    outlived: bool = False
    lost: bool = False
