"""The checks before a job and after it, one file for each thing that is looked at; `preflight` runs them in order.

A check is a function from a `CheckContext` to findings. It looks, it changes nothing that outlives it, it bounds its
own waits, and it raises nothing that it can say: what it cannot read is an `UNKNOWN` finding.
"""
