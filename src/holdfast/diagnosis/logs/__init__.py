"""The output of one attempt as evidence: what its words say, and which of them comes first.

`pattern` is the shape of a rule, `patterns` the rules that we ship, `rules` those of a user's file. `trigger_filter`
finds the few lines worth a look in a large log, `scan` reads a log into `LogFacts`, `attribute` makes detections
from them. Words alone never make a verdict certain.
"""
