"""The words by which logs tell a cause, as data with examples and near misses."""
