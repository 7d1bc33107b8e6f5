"""Is a card well: its condition from samples, counters and Xids, and who holds its memory unseen."""
