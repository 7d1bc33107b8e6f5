"""Interpreters for tests: a real Python with a torch that says what the test wants, and a driver library like it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

TORCH = """
import os, sys, time
from types import SimpleNamespace
__version__ = {version!r}
version = SimpleNamespace(cuda={cuda!r}, hip=None)
cuda = SimpleNamespace(is_available=lambda: {available!r}, device_count=lambda: {devices!r})
_C = SimpleNamespace(_cuda_getArchFlags=lambda: {architectures!r})
{extra}
"""

# Source: CUDA driver API; only what the question asks for.
DRIVER = """
#include <stdlib.h>
static int number(const char *name, int fallback) { const char *v = getenv(name); return v ? atoi(v) : fallback; }
int cuInit(unsigned flags) { (void)flags; return number("FAKE_CUDA_INIT", 0); }
int cuDriverGetVersion(int *v) { *v = number("FAKE_CUDA_VERSION", 12040); return 0; }
int cuGetErrorName(int code, const char **name) {
    *name = code == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR"; return 0;
}
int cuDeviceGetCount(int *n) { *n = number("FAKE_CUDA_DEVICES", 1); return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetAttribute(int *v, int which, int device) {
    int sm = number("FAKE_CUDA_SM", 90); (void)device;
    *v = which == 75 ? sm / 10 : sm % 10; return 0;
}
"""


def make_interpreter(
    directory: Path,
    *,
    version: str = "2.5.1+cu124",
    cuda: str | None = "12.4",
    available: bool = True,
    devices: int = 1,
    architectures: str = "sm_80 sm_90",
    extra: str = "",
) -> str:
    """A virtual environment whose torch answers like this; the path of its Python."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    library = directory / "lib" / name / "site-packages"
    (library / "torch").mkdir(parents=True)
    (library / f"torch-{version}.dist-info").mkdir()
    (directory / "bin").mkdir()
    (directory / "bin/python").symlink_to(os.path.realpath(sys.executable))
    home = os.path.dirname(os.path.realpath(sys.executable))
    (directory / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    text = TORCH.format(
        version=version, cuda=cuda, available=available, devices=devices, architectures=architectures, extra=extra
    )
    (library / "torch/__init__.py").write_text(text)
    return str(directory / "bin/python")


def build_driver(directory: Path) -> str:
    """A libcuda.so.1 in a directory for ``LD_LIBRARY_PATH``; answers the directory."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "no C compiler: install gcc and libc6-dev"
    directory.mkdir()
    source = directory / "cuda.c"
    source.write_text(DRIVER)
    flags = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(directory / "libcuda.so.1"))
    subprocess.run([compiler, *flags, str(source)], check=True)
    return str(directory)
