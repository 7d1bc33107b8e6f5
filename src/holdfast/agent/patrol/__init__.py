"""The parts of a patrol: looking at one run, looking at many in a child, remembering, being called by a clock."""
