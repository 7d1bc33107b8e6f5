"""The lines of sh that come before a job: ``setup`` of its file, and of the place where it runs. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from holdfast.core.control_characters import one_line
from holdfast.model.record import replace

from .redact import redact_text

if TYPE_CHECKING:
    from holdfast.model.job import JobSpec

FAILED = r"line (\d+) of setup failed with exit code (\d+): .*"
"""What is said last of a line that failed. One that leaves with 0 has failed, too: the command was not begun."""
LONGEST_LINE = 200


def put_setup_first(spec: JobSpec) -> JobSpec:
    """The job as it is executed: with its lines of setup before its command, and before its smoke test."""
    if not spec.setup:
        return spec
    smoke = wrap_in_setup(spec.setup, spec.smoke) if spec.smoke else ()
    return replace(spec, setup=(), command=wrap_in_setup(spec.setup, spec.command), smoke=smoke)


def wrap_in_setup(lines: tuple[str, ...], command: tuple[str, ...]) -> tuple[str, ...]:
    """The command behind lines of sh: one that fails ends the run there, with its words and its exit code (RAIL-14)."""
    script = "".join(f"{_build_trap(n, line)}\n{{ {line}\n}} || exit\n" for n, line in enumerate(lines, 1))
    return ("sh", "-c", f'{script}trap - EXIT\nexec "$@"', "setup", *command)


def _build_trap(number: int, line: str) -> str:
    """Also for a line that leaves by itself (``exit 3``): what it was is said whenever the shell ends in it.

    That is kept with the output, so without what looks like a secret.
    """
    text = shlex.quote(one_line(redact_text(line.strip()), LONGEST_LINE))
    told = f"printf '%s\\n' \"line {number} of setup failed with exit code $code: \"{text}"
    return f"trap {shlex.quote(f'code=$?; {told} >&2; [ $code -ne 0 ] || exit 1')} EXIT"


def leave_setup_out(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command alone, of one that `wrap_in_setup` made: what a person is told."""
    return command[4:] if command[:2] == ("sh", "-c") and command[3:4] == ("setup",) and len(command) > 4 else command
