"""Everything about one run, as records: its dossier, why it ended or hangs, its handbook."""
