"""Which queued job starts next, when it counts as done, and when it is tried again. Pure."""
