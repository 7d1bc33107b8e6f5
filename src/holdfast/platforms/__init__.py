"""Where a job can run. A platform only decides how a supervisor is started and how its run directory is reached.

`base` is the contract; one package for each platform. The same conformance suite runs against all of them.
"""
