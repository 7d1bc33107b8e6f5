"""Where the room goes: the biggest consumers behind links, and what of a run's declared scratch can be given back."""
