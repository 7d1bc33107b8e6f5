"""When to stop: signals, deadlines, requests, and whether one more save fits."""
