"""What a rehearsal must show, and how its two trainings are compared. Pure."""
