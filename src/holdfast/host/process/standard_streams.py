"""Descriptors 0, 1 and 2: where a parent closed one, the next file that is opened would become that stream."""

from __future__ import annotations

import os


def open_standard_descriptor(number: int) -> None:
    """Put /dev/null where nothing is open; children get it, too."""
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        os.set_inheritable(number, True)
