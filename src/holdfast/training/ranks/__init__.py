"""All ranks act on the same step, without a collective in each step."""
