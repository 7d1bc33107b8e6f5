"""Why did it die, why does it hang, why is it slow: evidence, detectors, verdicts (docs/diagnosis.md).

Three steps, kept apart. *Gathering* reads the box and never judges; what may block runs in a disposable child.
*Detectors* are pure functions from evidence to a `Detection` with a tri-state answer. *Folding* orders detections
and makes one `Verdict` with one action.
"""
