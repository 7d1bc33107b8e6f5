"""A Docker of one container that needs no Docker: what is inside is in namespaces that the test keeps, as a daemon.

The program `docker` of `place` says what files tell it to say: `labels` of the container that it knows, `pid` of its
first process, `info` of itself, `warning` beside an id, `taken` when its name is in use, `lost` when the client is to
leave. What it was asked is in `calls`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from holdfast.model.container import ContainerSpec, RuntimeName
from tests.waiting import wait_until

ID = "b" * 64
IMAGE = f"x@sha256:{ID}"
INSIDE = """set -e
mount -t tmpfs none /run
mkdir /run/holdfast
mount --bind "$0" /run/holdfast
mount -t proc proc /proc
exec "$@"
"""
PROGRAM = """#!{python} -IS
import json, os, sys, time
place = {place!r}
words, told = sys.argv[1:], lambda name: os.path.exists(place + "/" + name)
def read(name, default=""):
    return open(place + "/" + name).read() if told(name) else default
with open(place + "/calls", "a") as file:
    file.write(" ".join(words) + "\\n")
if words[0] == "info":
    print(read("info", '{{"ServerVersion": "28", "CgroupDriver": "none"}}'))
elif words[:2] == ["image", "inspect"]:
    print('[{{"Id": "sha256:{id}", "Config": {{}}}}]')
elif words[0] == "create":
    if told("taken"):
        open(place + "/asked", "w").close()
        while told("hold"):
            time.sleep(0.02)
        sys.exit('Conflict. The container name "/x" is already in use by container "c".')
    room = next(w for w in words if w.startswith("--mount=") and w.endswith("target=/run/holdfast"))
    plan = {{"room": room.split("source=")[1].split(",")[0], "command": words[words.index("--entrypoint=/bin/sh") + 2:],
            "environ": {{w[6:]: os.environ[w[6:]] for w in words if w.startswith("--env=")}},
            "workdir": next(w[10:] for w in words if w.startswith("--workdir="))}}
    with open(place + "/plan", "w") as file:
        json.dump(plan, file)
    sys.stderr.write(read("warning"))
    sys.stderr.flush()
    print("{id}")
elif words[0] == "start":
    open(place + "/started", "w").close()
    while not told("lost") and (not told("pid") or os.path.exists("/proc/" + read("pid"))):
        time.sleep(0.02)
    sys.exit(125)
elif words[:2] == ["container", "inspect"]:
    labels = json.loads(read("labels", "{{}}"))
    state = {{"Running": told("pid"), "Pid": int(read("pid", "0"))}}
    print(json.dumps([{{"Id": "{id}", "Config": {{"Labels": labels}}, "State": state}}]))
elif words[0] == "rm":
    os.path.exists(place + "/taken") and os.remove(place + "/taken")
"""


@dataclass(slots=True)
class StandIn:
    """The place of one such Docker, and its container once it runs."""

    place: Path
    process: subprocess.Popen[bytes] | None = None

    def make(self) -> StandIn:
        """Make the program."""
        self.place.mkdir()
        (self.place / "docker").write_text(PROGRAM.format(python=sys.executable, place=str(self.place), id=ID))
        (self.place / "docker").chmod(0o755)
        return self

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": f"{self.place}:{os.environ['PATH']}"}

    @property
    def container(self) -> ContainerSpec:
        return ContainerSpec(IMAGE, RuntimeName.DOCKER)

    def write(self, name: str, text: object = "") -> None:
        aside = self.place / f".{name}"
        aside.write_text(str(text))
        aside.rename(self.place / name)

    def asked(self, verb: str) -> list[str]:
        """What it was asked with this verb."""
        text = (self.place / "calls").read_text()
        return [line for line in text.splitlines() if line.split()[0] == verb]

    def begin(self) -> int:
        """Once its client says so, start what is inside, and tell by its first process; its pid."""
        wait_until((self.place / "started").exists, what="its client starts it")
        plan = json.loads((self.place / "plan").read_text())
        environ = [f"{name}={value}" for name, value in plan["environ"].items()]
        inner = ["sh", "-c", INSIDE, plan["room"], "env", "-i", *environ, "/bin/sh", *plan["command"]]
        # No child of the keeper, as with a daemon.
        self.process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", *inner],
            cwd=plan["workdir"],
            env={"PATH": os.environ["PATH"]},
        )
        pid = first_child(self.process.pid)
        self.write("pid", pid)
        return pid

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def first_child(pid: int) -> int:
    """The pid of the child that `unshare` has forked."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return int(wait_until(lambda: path.read_text().split(), what="unshare has forked")[0])
