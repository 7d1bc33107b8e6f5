"""The command line: one verb, one file under `verbs`; it parses, calls one function, and renders the answer.

A verb parses, calls one function, and renders. Start-up is a feature: a verb is imported when it is used, and nothing
here is imported by the layers below.
"""

from __future__ import annotations

COMPLETE_VARIABLE = "_HOLDFAST_COMPLETE"
"""Set by the completion scripts when they ask what may come next."""
