"""The supervisor of one run: observe, decide, commit, act. Nothing but the dispatch imports it."""
