"""Following a run that lives: its start, its output, its end."""
