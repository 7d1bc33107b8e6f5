"""A stand-in for apptainer: its ``exec``, as far as holdfast uses it, over mount and PID namespaces and chroot.

Honours ``--containall --cleanenv --no-home --pid --pwd --bind --net --network=none``, ``APPTAINERENV_`` variables (or
``SINGULARITYENV_`` by that name), exit codes and signals; ``--nv`` changes nothing. The image is a directory. Anything
else on the command line ends it with 255, as the real one ends with an unknown flag. As the real one it takes binds
from ``APPTAINER_BIND`` too, passes proxies on, and sets HOME itself, whatever ``APPTAINERENV_HOME`` says.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

NAME = os.environ["STAND_IN_NAME"].upper()
CLONE_NEWNET = 0x40000000
KNOWN = {"--containall", "--cleanenv", "--no-home", "--pid"}


def main(words: list[str]) -> None:
    if words[:1] != ["exec"]:
        sys.exit(255)
    binds, place, flags = [], "/", set()
    rest = words[1:]
    while rest[0].startswith("--"):
        name, _, value = rest.pop(0).partition("=")
        if name == "--bind":
            binds.append(value.rsplit(":", 2))
        elif name == "--pwd":
            place = value
        elif name in KNOWN or words_of(name, value) in ("--nv", "--net", "--network=none"):
            flags.add(words_of(name, value))
        else:
            sys.exit(255)
    if flags - {"--nv", "--net", "--network=none"} != KNOWN or ("--net" in flags) != ("--network=none" in flags):
        sys.exit(255)
    binds += [[path, path, "rw"] for path in filter(None, os.environ.get(f"{NAME}_BIND", "").split(","))]
    if "--net" in flags:
        ctypes.CDLL(None).unshare(CLONE_NEWNET)
    image, *command = rest
    if not os.path.isdir(image):
        sys.stderr.write(f"FATAL: could not open image {image}\n")
        sys.exit(255)
    enter(image, binds, place, command)


def words_of(name: str, value: str) -> str:
    return f"{name}={value}" if value else name


def enter(image: str, binds: list[list[str]], place: str, command: list[str]) -> None:
    for source, target, mode in binds:
        inside = image + target
        if os.path.isdir(source):
            os.makedirs(inside, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(inside), exist_ok=True)
            with open(inside, "a"):
                pass
        subprocess.run(["mount", "--bind", source, inside], check=True)
        if mode == "ro":
            subprocess.run(["mount", "-o", "remount,bind,ro", inside], check=True)
    subprocess.run(["mount", "-t", "proc", "proc", f"{image}/proc"], check=True)
    subprocess.run(["mount", "--rbind", "/dev", f"{image}/dev"], check=True)
    os.chroot(image)
    os.chdir(place)
    prefix = f"{NAME}ENV_"
    declared = {name[len(prefix) :]: value for name, value in os.environ.items() if name.startswith(prefix)}
    if declared.pop("HOME", None) is not None:
        sys.stderr.write(f"WARNING: Overriding HOME environment variable with {prefix}HOME is not permitted\n")
    passed = {name: os.environ[name] for name in ("http_proxy", "NO_PROXY") if name in os.environ}
    own = {"PATH": "/usr/bin:/bin", "HOME": "/home/account", "LANG": "C", "APPTAINER_CONTAINER": image}
    os.execve(command[0], command, {**own, **passed, **declared})


if os.environ.get("STAND_IN_STAGE") == "2":
    del os.environ["STAND_IN_STAGE"]
    main(sys.argv[1:])
else:
    os.environ["STAND_IN_STAGE"] = "2"
    os.execvp(
        "unshare", ["unshare", "--mount", "--pid", "--fork", "--kill-child", sys.executable, __file__, *sys.argv[1:]]
    )
