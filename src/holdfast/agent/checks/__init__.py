"""The checks that run before a job, one file for each thing that is looked at; `agent.preflight` runs them in order.

A check is a function from a `Situation` to findings. It looks, it changes nothing that outlives it, it bounds its own
waits, and it raises nothing that it can say: what it cannot read is an `UNKNOWN` finding.
"""
