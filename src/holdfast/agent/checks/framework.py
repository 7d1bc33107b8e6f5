"""Checks of the framework: the job's interpreter reaches a card; driver, torch and card fit (PRE-09, PRE-10, PRE-18).

torch is never imported here: the interpreter that the command names is started once with a small program, under a
deadline, and says what it sees. No CUDA context is made, so no memory is taken on a card that somebody else uses: torch
only counts devices, and everything about the cards is asked of the driver's own library (``cuDeviceGetAttribute``).
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.core.cards.packing import NEEDS_CARDS
from holdfast.core.code.requirements import is_met, is_requirements_file, name_of, split_requirements
from holdfast.core.control_characters import one_line
from holdfast.core.job.framework import FrameworkFacts, judge_framework, judge_initialised
from holdfast.host.clock import monotonic_s
from holdfast.host.formats.packages import find_command, find_interpreter, find_package
from holdfast.host.gpu.allocation import imposed_allocation
from holdfast.host.gpu.inventory import read_inventory
from holdfast.model.finding import Finding, Level
from holdfast.model.record import record, replace

from .context import READ_WITHIN_S, CheckContext, passed, unknown, warned

if TYPE_CHECKING:
    import subprocess

ANSWER_WITHIN_S = 60.0
"""Importing torch from a cold network disk takes tens of seconds."""
WITHOUT_TORCH = "for a job without torch: --no-gpu-verify (in a job file gpu: {verify: false})"
MOST_ANSWER_BYTES = 1 << 20
MOST_REQUIREMENTS = 20
MARK = "HOLDFAST-FRAMEWORK "
"""Before the answer: start-up code of an environment may print, too."""

# What the interpreter runs. It dies with us (PR_SET_PDEATHSIG is 1, SIGKILL 9), and prints one marked line.
# Source: CUDA driver API, cuDeviceGetAttribute: 75 and 76 are the compute capability's major and minor number.
PROGRAM = """
import sys
# A json.py or types.py in the job's directory is not meant for this program.
sys.path[:] = [entry for entry in sys.path if entry]
import ctypes, json, warnings
try:
    ctypes.CDLL(None).prctl(1, 9)
except Exception:
    pass
facts = {}
def ask_driver():
    cuda = ctypes.CDLL("libcuda.so.1")
    code = cuda.cuInit(0)
    number = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0:
        facts["driver_cuda"] = [number.value // 1000, number.value % 1000 // 10]
    if code:
        name = ctypes.c_char_p()
        cuda.cuGetErrorName(code, ctypes.byref(name))
        facts["driver_error"] = "cuInit: %s (%d)" % ((name.value or b"?").decode(), code)
        return
    cuda.cuDeviceGetCount(ctypes.byref(number))
    found = []
    for index in range(number.value):
        device, pair = ctypes.c_int(), []
        cuda.cuDeviceGet(ctypes.byref(device), index)
        for which in (75, 76):
            cuda.cuDeviceGetAttribute(ctypes.byref(number), which, device)
            pair.append(number.value)
        found.append(pair)
    facts["capabilities"] = found
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        sys.stdout.write("\\nMARKnull\\n")
        sys.exit(0)
    facts["version"] = str(torch.__version__)
    facts["cuda"] = getattr(torch.version, "cuda", None)
    facts["hip"] = getattr(torch.version, "hip", None)
    try:
        ask_driver()
    except Exception as error:
        facts["driver_error"] = "%s: %s" % (type(error).__name__, error)
    try:
        facts["available"] = bool(torch.cuda.is_available())
        facts["devices"] = int(torch.cuda.device_count())
    except Exception as error:
        facts["available"] = False
        facts["words"] = "%s: %s" % (type(error).__name__, error)
    try:
        facts["architectures"] = str(torch._C._cuda_getArchFlags() or "").split()
    except Exception:
        try:
            facts["architectures"] = list(torch.cuda.get_arch_list())
        except Exception:
            pass
if caught and not facts.get("words"):
    facts["words"] = str(caught[-1].message)
sys.stdout.write("\\nMARK" + json.dumps(facts) + "\\n")
sys.stdout.flush()
""".replace("MARK", MARK)


class FrameworkUnread(Exception):
    """The interpreter did not say; the message says why."""


class NoFramework(Exception):
    """The interpreter has no torch."""


def ask_framework(
    python: str, environ: Mapping[str, str], *, cwd: str | None = None, within_s: float = ANSWER_WITHIN_S
) -> FrameworkFacts:
    """What the torch of `python` sees, asked in a child of ours that is killed after `within_s` seconds.

    Raises:
        FrameworkUnread: it could not be started, took too long, or ended without an answer.
        NoFramework: it has no torch.
    """
    import subprocess

    # Not marked as part of a run, and free in its choice of cards: which ones the job gets is not decided yet.
    kept = {name: value for name, value in environ.items() if not name.startswith("HOLDFAST_")}
    try:
        child = subprocess.Popen(
            (python, "-c", PROGRAM),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd if cwd and os.path.isdir(cwd) else "/",
            env=kept,
            start_new_session=True,
        )
    except OSError as error:
        raise FrameworkUnread(f"{python} could not be started: {error.strerror}") from error
    out, err, late = _collect(child, within_s)
    if late:
        raise FrameworkUnread(f"{python} did not answer within {within_s:g} s (importing torch, asking the driver)")
    return read_words(out.splitlines(), python, errors=err, ended=f"with {child.returncode}")


def read_words(lines: Sequence[str], python: str, *, errors: str = "", ended: str = "") -> FrameworkFacts:
    """What `PROGRAM` printed.

    Raises:
        FrameworkUnread: there is no answer in it.
        NoFramework: there is no torch.
    """
    line = next((line for line in reversed(lines) if line.startswith(MARK)), None)
    if line is None:
        last = (errors.strip().splitlines() or [text for text in lines if text.strip()])[-1:] or ["nothing"]
        raise FrameworkUnread(f"{python} ended {ended} and said: {last[0][:300]}".replace("  ", " "))
    return _read(line[len(MARK) :], python)


def _collect(child: subprocess.Popen[bytes], within_s: float) -> tuple[str, str, bool]:
    """Both outputs of a child, at most `MOST_ANSWER_BYTES` each, and whether it had to be killed."""
    assert child.stdout is not None
    assert child.stderr is not None
    pieces: dict[int, bytearray] = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
    poller, deadline, late = select.poll(), monotonic_s() + within_s, False
    for descriptor in pieces:
        poller.register(descriptor, select.POLLIN)
    open_ends = set(pieces)
    while open_ends and not late:
        left_ms = int((deadline - monotonic_s()) * 1000)
        late = left_ms <= 0
        for descriptor, _ in () if late else poller.poll(left_ms):
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                poller.unregister(descriptor)
                open_ends.discard(descriptor)
            elif len(pieces[descriptor]) < MOST_ANSWER_BYTES:
                pieces[descriptor] += chunk
    late = _end(child, max(deadline - monotonic_s(), 0.0), late=late)
    texts = [bytes(piece).decode("utf-8", "replace") for piece in pieces.values()]
    child.stdout.close()
    child.stderr.close()
    return texts[0], texts[1], late


def _end(child: subprocess.Popen[bytes], left_s: float, *, late: bool) -> bool:
    """Wait for the child until its deadline, then kill it; one that is stuck in the driver is left behind."""
    import subprocess

    if not late:
        try:
            child.wait(left_s)
        except subprocess.TimeoutExpired:
            late = True
    if late:
        # Not reaped yet, so its number is still its own; it leads its own group.
        os.killpg(child.pid, signal.SIGKILL)
        try:
            child.wait(0.5)
        except subprocess.TimeoutExpired:
            pass
    return late


def _read(text: str, python: str) -> FrameworkFacts:
    if text.strip() == "null":
        raise NoFramework
    try:
        value = json.loads(text)
        driver = value.get("driver_cuda")
        return FrameworkFacts(
            version=str(value["version"])[:100],
            cuda=None if value.get("cuda") is None else str(value["cuda"])[:20],
            hip=None if value.get("hip") is None else str(value["hip"])[:20],
            architectures=tuple(str(name)[:20] for name in value.get("architectures") or ())[:50],
            available=value.get("available") if isinstance(value.get("available"), bool) else None,
            devices=value.get("devices") if isinstance(value.get("devices"), int) else None,
            capabilities=tuple((int(major), int(minor)) for major, minor in value.get("capabilities") or ()),
            driver_cuda=(int(driver[0]), int(driver[1])) if driver else None,
            driver_error=str(value.get("driver_error") or "")[:300],
            words=" ".join(str(value.get("words") or "").split())[:300],
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise FrameworkUnread(f"{python} gave an answer that cannot be read: {error}") from error


def check_framework(situation: CheckContext) -> Iterator[Finding]:
    """The job's own torch sees a card, and driver, build and card fit; asked only of jobs that want cards."""
    spec = situation.spec
    if not spec.gpus.wanted:
        return
    if not spec.gpu.verify:
        yield passed("framework.cuda", "torch", "not asked: the job says so (gpu.verify)")
        return
    if "HOLDFAST_SIMULATED_GPUS" in situation.environ:
        yield passed("framework.cuda", "torch", "not asked: the cards are simulated")
        return
    if spec.container.image is not None:
        yield passed("framework.cuda", "torch", "asked inside the image, before the command runs")
        return
    python = find_python(spec.command, situation.job_environ, spec.workdir)
    if python is None:
        seen = f"which Python {spec.command[0] if spec.command else 'nothing'} runs cannot be told from outside"
        yield unknown("framework.cuda", "torch", f"{seen}: not asked", "name the interpreter in the command")
        return
    if python.has_torch is False:
        yield passed("framework.cuda", python.path, "has no torch that we can see: nothing to ask")
        return
    environ = dict(situation.job_environ)
    if imposed_allocation(environ) is None:
        # The job gets another value with its lease; what is set now may hide every card, and says nothing about that.
        environ.pop("CUDA_VISIBLE_DEVICES", None)
    found = judge_interpreter(python.path, environ, cwd=spec.workdir)
    if any(finding.level is Level.FAIL for finding in found) and _has_no_card(situation):
        seen = "not judged: this box has no card, so no torch finds one"
        yield unknown("framework.cuda", python.path, seen, NEEDS_CARDS)
        return
    for finding in found:
        # A job of another framework is not to be held up by a torch that it never imports.
        yield replace(finding, remedy=f"{finding.remedy}; {WITHOUT_TORCH}") if finding.level is Level.FAIL else finding


def _has_no_card(situation: CheckContext) -> bool:
    """Whether it is known that there is none; then that is why the job cannot run, whatever its torch is."""
    inventory = read_inventory(READ_WITHIN_S) if situation.inventory is None else situation.inventory
    return inventory.complete and not inventory.cards


@record
class PythonInterpreter:
    """A Python that can be asked. `has_torch` is None where its packages cannot be told without running it."""

    path: str
    has_torch: bool | None = None


def find_python(command: Sequence[str], environ: Mapping[str, str], workdir: str) -> PythonInterpreter | None:
    """The Python that a command runs under; also a script of that name (a shim of pyenv or asdf) which chooses one."""
    interpreter = find_interpreter(command, environ, workdir)
    if interpreter is not None:
        return PythonInterpreter(interpreter.path, find_package(interpreter, "torch").version is not None)
    if not command or not re.fullmatch(r"python(\d+(\.\d+)?)?", os.path.basename(command[0])):
        return None
    path = find_command(command[0], environ, workdir)
    return None if path is None or not os.access(path, os.X_OK) else PythonInterpreter(path)


def judge_interpreter(
    python: str,
    environ: Mapping[str, str],
    *,
    cwd: str | None = None,
    within_s: float = ANSWER_WITHIN_S,
) -> tuple[Finding, ...]:
    """Every finding about the torch of one interpreter."""
    return _judge(lambda: ask_framework(python, environ, cwd=cwd, within_s=within_s), python)


def judge_words(lines: Sequence[str], python: str) -> tuple[Finding, ...]:
    """Every finding about what `PROGRAM` printed where somebody else ran it."""
    return _judge(lambda: read_words(lines, python), python)


def _judge(ask: Callable[[], FrameworkFacts], python: str) -> tuple[Finding, ...]:
    try:
        facts = ask()
    except NoFramework:
        return (passed("framework.cuda", python, "has no torch: nothing to ask"),)
    except FrameworkUnread as problem:
        remedy = f"try it by hand: {python} -c 'import torch; print(torch.cuda.is_available())'"
        return (unknown("framework.cuda", python, str(problem), remedy),)
    fit = judge_framework(facts, subject=python)
    if facts.cuda is None and facts.hip is None:
        return fit
    return (judge_initialised(facts, subject=python), *fit)


def check_replacement(situation: CheckContext) -> Iterator[Finding]:
    """The requirements beside the code ask for the framework that is there: installing them would replace no other."""
    spec = situation.spec
    interpreter = find_interpreter(spec.command, situation.job_environ, spec.workdir)
    if interpreter is None or spec.container.image is not None:  # an image has an interpreter of its own
        return
    for path, text in _read_requirements(spec.workdir):
        for asked in split_requirements(path, text)[1]:
            name = name_of(asked)
            there = find_package(interpreter, name).version
            if there is None:
                continue
            what = f"asks for {one_line(asked, 100)}, and {interpreter.path} has {name} {there}"
            if is_met(asked, there):
                yield passed("framework.pins", path, what)
            else:
                remedy = f"keep the one that fits this box's driver: install the rest without {name}"
                yield warned("framework.pins", path, f"{what}: installing it would replace that build", remedy)


def _read_requirements(directory: str) -> Iterator[tuple[str, str]]:
    try:
        names = sorted(name for name in os.listdir(directory) if is_requirements_file(name))
    except OSError:
        return
    for name in names[:MOST_REQUIREMENTS]:
        try:
            with open(f"{directory}/{name}", encoding="utf-8", errors="replace") as file:
                yield f"{directory}/{name}", file.read(MOST_ANSWER_BYTES)
        except OSError:
            continue


def check_base_environment(situation: CheckContext) -> Iterator[Finding]:
    """The job does not train in conda's base environment of a machine that is kept (PRE-18)."""
    spec = situation.spec
    interpreter = find_interpreter(spec.command, situation.job_environ, spec.workdir)
    if interpreter is None or spec.container.image is not None:  # an image has an interpreter of its own
        return
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(interpreter.path)))
    if not (is_conda_base(prefix) or _is_named_base(situation.job_environ, prefix)):
        return
    rented = find_rental(situation.environ, root=situation.root)
    if rented:
        yield passed("environment.base", prefix, f"is conda's base environment; fine on a rented box ({rented})")
        return
    seen = "is conda's base environment: what one project installs there breaks conda itself and every other project"
    yield warned("environment.base", prefix, seen, "conda create -n NAME python=3.11, and run from there")


def is_conda_base(prefix: str) -> bool:
    """Whether this prefix is a conda's own environment: only that one has ``condabin`` besides its package records."""
    return os.path.isdir(f"{prefix}/conda-meta") and os.path.isdir(f"{prefix}/condabin")


def _is_named_base(environ: Mapping[str, str], prefix: str) -> bool:
    """Whether the activated environment is called base and is this one, wherever its conda's own files are."""
    active = environ.get("CONDA_PREFIX", "")
    same = os.path.realpath(active) == os.path.realpath(prefix) if active else os.path.isdir(f"{prefix}/conda-meta")
    return environ.get("CONDA_DEFAULT_ENV") == "base" and same


def find_rental(environ: Mapping[str, str], *, root: str = "") -> str:
    """What shows that this box is thrown away after use; empty when nothing does.

    Source: the providers' documentation of variables in their boxes; podman(1) and docker's marker files; the variable
    ``container`` is systemd's container interface.
    """
    for name in ("RUNPOD_POD_ID", "VAST_CONTAINERLABEL", "AutoDLContainerUUID", "KUBERNETES_SERVICE_HOST", "container"):
        if environ.get(name):
            return name
    return next((path for path in ("/.dockerenv", "/run/.containerenv") if os.path.exists(root + path)), "")
