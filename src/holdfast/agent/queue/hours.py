"""The hours in which the rules of the box let jobs take cards, as they concern the queue."""

from __future__ import annotations

import os
import time

from holdfast.core.rules.rules import judge_hours
from holdfast.host.files.rules_file import read_rules
from holdfast.model.errors import HoldfastError


def read_closed_hours() -> str:
    """Why no job for cards may start at this time of day by the rules of the box; empty when one may.

    Rules that cannot be read close nothing here: the run's own checks refuse it and say why.
    """
    try:
        rules = read_rules(os.environ)
    except HoldfastError:
        return ""
    local = time.localtime()
    finding = judge_hours(rules, local.tm_hour * 60 + local.tm_min)
    return "" if finding is None else f"{finding.evidence}; {finding.remedy}"
