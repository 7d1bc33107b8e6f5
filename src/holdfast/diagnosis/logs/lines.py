"""Lines of a log as a terminal leaves them: no colours, no overwritten states, the rank's label apart. Pure."""

from __future__ import annotations

import re

from holdfast.model.pattern import compile_later

LAST_LINES = 200
TAIL_BYTES = 256 * 1024
LONGEST_SHOWN = 2000

_ESCAPES = compile_later(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_=>])")
"""CSI and OSC sequences, and two-byte escapes (ECMA-48)."""
_LABEL = compile_later(
    r"""
    \[(?:rank|default)?(?P<bracket>\d{1,6})\]:\s?    # torch's excepthook, torchrun --tee: [rank0]: [0]:
    | \[(?:\d+,)?(?P<mpi>\d{1,6})\]<std(?:out|err)>:\s?  # mpirun --tag-output, horovodrun
    | (?P<srun>\d{1,5}):\s                             # srun --label
    | \ {2,}\|\                                             # a part of an exception group
    | [a-z][\w.-]{0,60}-\d{1,3}\ +\|\                      # docker compose
    | \d{4}-\d\d-\d\dT[\d:.]{8,18}Z\ (?:std(?:out|err)\ [FP]\ )?  # kubectl logs --timestamps, containerd
    | \((?:[\w.]+\ )?pid=\d+(?:,\ ip=[\d.]+)?\)\s?     # Ray
    """,
    re.VERBOSE,
)


def clean_line(line: str) -> tuple[int | None, str]:
    """The rank that a line's label names, and the line without label, colours and overwritten states."""
    text = line.rstrip("\r\n")
    if "\r" in text:
        text = text.rpartition("\r")[2]
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    rank = None
    # torchrun's label may stand before the one of torch's excepthook: the inner one is the global rank.
    for _ in range(2):
        label = _LABEL.match(text)
        if label is None:
            break
        number = label["bracket"] or label["mpi"] or label["srun"]
        rank = rank if number is None else int(number)
        text = text[label.end() :]
    return rank, text


def cut_tail(data: bytes, lines: int = LAST_LINES) -> str:
    """The last lines of a log's last bytes as text; very long lines are cut."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    # A progress bar rewrites its line with carriage returns: only its last state is a line.
    kept = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    if kept and kept[-1] == "":
        kept.pop()
    return cut_lines(kept[-lines:])


def cut_lines(lines: list[str]) -> str:
    """The lines as one text, very long ones cut."""
    return "\n".join(line if len(line) <= LONGEST_SHOWN else line[:LONGEST_SHOWN] + " ..." for line in lines)
