"""What a run gets before it starts, from its job, the rules and the box: grace, shares, cards that fit, its scope."""
