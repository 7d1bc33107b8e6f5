"""Real container runtimes for tests: stores and a daemon of the session's own, and a small image.

Nothing is fetched: the image is `import`ed from a tar of ``/usr/bin/python3``, a shell and what they load. Where a
runtime is not installed, or does not start here, the test says why and is skipped.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.host.files import files
from holdfast.host.files.filesystems import read_mounts
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

PYTHON = "/usr/bin/python3"
TOOLS = ("/bin/sh", "/bin/sleep", "/usr/bin/env", "/bin/cat", "/bin/kill", "/bin/true")
LEFT_OUT = (
    "test",
    "idlelib",
    "tkinter",
    "ensurepip",
    "dist-packages",
    "lib2to3",
    "pydoc_data",
    "unittest",
    "distutils",
)
NAME = "localhost/hf/py"
CONTAINERS_CONF = '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n'


@dataclass(slots=True)
class Engine:
    """One runtime with an image in it. `environ` is what a run that uses it is started with."""

    name: str
    environ: dict[str, str]
    image: str
    tag: str
    shell_image: str

    def __call__(self, *words: str, code: int | None = 0) -> str:
        done = subprocess.run(
            [self.name, *words], env={**os.environ, **self.environ}, capture_output=True, text=True, check=False
        )
        assert code is None or done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout.strip()

    def left(self) -> str:
        """The containers that are there now."""
        return self("ps", "--all", "--quiet")


def _list_libraries(*programs: str) -> set[str]:
    found: set[str] = set()
    for program in programs:
        told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        found |= set(re.findall(r"(/[^ ]+\.so[^ ]*)", told))
    return found


def make_image(path: Path, *, python: bool) -> None:
    """A tar of a root file system: a shell, a few tools, and Python's standard library or none."""
    real = os.path.realpath(PYTHON)
    library = Path("/usr/lib") / os.path.basename(real)
    modules = [str(one) for one in library.glob("lib-dynload/*.so")] if python else []

    def keep(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = member.name.split("/")
        skipped = "__pycache__" in parts or any(part in LEFT_OUT or part.startswith("config-") for part in parts[3:4])
        return None if skipped else member

    with tarfile.open(path, "w", dereference=False) as tar:
        for name in ("tmp", "etc", "proc", "sys", "dev", "run", "var", "usr/bin", "bin"):
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(member)
        programs = {f"bin/{os.path.basename(tool)}": os.path.realpath(tool) for tool in TOOLS}
        if python:
            programs["usr/bin/python3"] = real
            tar.add(library, str(library)[1:], filter=keep)
        for name in _list_libraries(*programs.values(), *modules):
            programs[name[1:]] = os.path.realpath(name)
        for name, source in programs.items():
            tar.add(source, name)


def make_images(place: Path) -> tuple[Path, Path]:
    """With Python, and without."""
    if not os.path.exists(PYTHON) or not os.path.isdir(Path("/usr/lib") / os.path.basename(os.path.realpath(PYTHON))):
        pytest.skip(f"there is no Debian's {PYTHON} to make an image of")
    for name in ("python", "shell"):
        make_image(place / f"{name}.tar", python=name == "python")
    return place / "python.tar", place / "shell.tar"


@pytest.fixture(scope="session")
def image_tars(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """With Python, and without."""
    return make_images(tmp_path_factory.mktemp("images"))


@contextlib.contextmanager
def open_podman(image_tars: tuple[Path, Path], driver: str = "vfs") -> Iterator[Engine]:
    """Podman as this account, with a store of its own. By vfs, which works everywhere, each container is a copy."""
    if shutil.which("podman") is None or shutil.which("runc") is None:
        pytest.skip("podman and runc are not installed")
    # Not below pytest's directory: its names are too long for the sockets that podman makes.
    place = Path(tempfile.mkdtemp(prefix="hf-pod-"))
    (place / "containers.conf").write_text(CONTAINERS_CONF)
    storage = f'[storage]\ndriver = "{driver}"\ngraphroot = "{place}/store"\nrunroot = "{place}/run"\n'
    (place / "storage.conf").write_text(storage)
    environ = {
        "CONTAINERS_CONF": str(place / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(place / "storage.conf"),
    }
    engine = Engine("podman", environ, "", f"{NAME}:1", "")
    try:
        for tag, tar in zip(("1", "sh"), image_tars, strict=True):
            engine("import", str(tar), f"{NAME}:{tag}")
        engine.image, engine.shell_image = (
            f"{NAME}@{engine('image', 'inspect', '--format', '{{.Digest}}', f'{NAME}:{tag}')}" for tag in ("1", "sh")
        )
        limits = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
        words = ("run", "--rm", *limits, "--network", "host", f"{NAME}:sh", "/bin/true")
        said = subprocess.run(
            ["podman", *words], env={**os.environ, **environ}, capture_output=True, text=True, check=False
        )
        if said.returncode:
            pytest.skip(f"podman runs no container here: {said.stderr.strip()[-300:]}")
        yield engine
    finally:
        engine("rm", "--all", "--force", code=None)
        engine("rmi", "--all", "--force", code=None)
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="session")
def podman(image_tars: tuple[Path, Path]) -> Iterator[Engine]:
    """Podman as this account, with a store of its own."""
    with open_podman(image_tars) as engine:
        yield engine


@contextlib.contextmanager
def make_docker_place() -> Iterator[Path]:
    """Where a daemon has its socket and its data."""
    place = Path(tempfile.mkdtemp(prefix="hf-doc-"))
    try:
        yield place
    finally:
        # A daemon leaves its network namespace mounted, and with --live-restore its data.
        for mount in reversed(read_mounts()):
            if mount.mount_point.startswith(f"{place}/"):
                subprocess.run(["umount", "--lazy", mount.mount_point], capture_output=True, check=False)
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="session")
def docker_place() -> Iterator[Path]:
    """Where the daemon of the session has its socket and its data."""
    with make_docker_place() as place:
        yield place


@dataclass(slots=True)
class Daemon:
    """A dockerd of the session's own; it can be restarted under running containers.

    Neither a child of this process nor with the environment of a test: one would take it for what it has left behind.
    A shell beside it ends it when this process is gone, however that came.
    """

    place: Path
    driver: str = "vfs"

    @property
    def socket(self) -> str:
        return f"unix://{self.place}/docker.sock"

    @property
    def pid(self) -> int | None:
        text = files.read_text_or_none(str(self.place / "pid")) or ""
        return int(text) if text.strip().isdigit() and os.path.exists(f"/proc/{text.strip()}") else None

    def start(self) -> None:
        words = ["dockerd", "--bridge=none", "--iptables=false", f"--storage-driver={self.driver}", "--live-restore"]
        words += [f"--data-root={self.place}/data", f"--exec-root={self.place}/exec", f"--pidfile={self.place}/pid"]
        # The watch goes with the daemon: a pid that it outlived may be another's by the time it kills.
        watch = f'"$@" & d=$!; (tail --pid={os.getpid()} -f /dev/null; kill $d) & wait $d; kill $!'
        with (self.place / "log").open("ab") as log:
            subprocess.run(
                ["setsid", "--fork", "sh", "-c", watch, "sh", *words, "-H", self.socket],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"PATH": os.environ["PATH"]}, cwd="/", check=True,
            )  # fmt: skip
        try:
            wait_until(self.answers, what="dockerd answers")
        except AssertionError:
            pytest.skip(f"dockerd does not start here: {(self.place / 'log').read_text()[-400:]}")

    def answers(self) -> bool:
        asked = ["docker", "-H", self.socket, "version"]
        return subprocess.run(asked, capture_output=True, check=False).returncode == 0

    def stop(self) -> None:
        pid = self.pid
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: self.pid is None, what="dockerd has left")


@contextlib.contextmanager
def open_daemon(docker_place: Path, driver: str = "vfs") -> Iterator[Daemon]:
    """A dockerd, as root."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None or shutil.which("docker") is None:
        pytest.skip("dockerd is not installed, or we are not root")
    made = Daemon(docker_place, driver)
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def daemon(docker_place: Path) -> Iterator[Daemon]:
    """A dockerd, as root."""
    with open_daemon(docker_place) as made:
        yield made


@contextlib.contextmanager
def open_docker(daemon: Daemon, image_tars: tuple[Path, Path]) -> Iterator[Engine]:
    """Docker with a daemon of the session's own."""
    engine = Engine("docker", {"DOCKER_HOST": daemon.socket}, "", f"{NAME}:1", "")
    engine.image, engine.shell_image = (
        engine("import", str(tar), f"{NAME}:{tag}") for tag, tar in zip(("1", "sh"), image_tars, strict=True)
    )
    try:
        yield engine
    finally:
        for container in engine("ps", "--all", "--quiet").split():
            engine("rm", "--force", container, code=None)


@pytest.fixture(scope="session")
def docker(daemon: Daemon, image_tars: tuple[Path, Path]) -> Iterator[Engine]:
    """Docker with a daemon of the session's own."""
    with open_docker(daemon, image_tars) as engine:
        yield engine
