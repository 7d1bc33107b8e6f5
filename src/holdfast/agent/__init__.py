"""The programs that run and watch jobs on one box: supervisor, queue worker, patrol, and what reads or changes runs."""

from __future__ import annotations
