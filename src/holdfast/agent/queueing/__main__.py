"""Entry of a worker: ``python -I -S .../holdfast/agent/queueing DIRECTORY``; see `agent.queueing.worker`."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Isolated mode puts nothing of ours on the path: the directory that holds the package is all that a worker needs.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(here))))
    from holdfast.agent.queueing.worker import main

    sys.exit(main(sys.argv[1]))
