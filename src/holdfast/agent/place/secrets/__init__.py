"""Secrets on this box, for a desk: kept, listed, removed, and tried."""
