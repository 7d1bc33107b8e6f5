"""Entry of a supervisor: ``python -I -S .../holdfast/agent RUN_DIR ATTEMPT REASON``; see `agent.supervisor`."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Isolated mode puts nothing of ours on the path: this package's own parent is all that a supervisor needs.
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from holdfast.agent.supervisor import main

    sys.exit(main(sys.argv[1:]))
