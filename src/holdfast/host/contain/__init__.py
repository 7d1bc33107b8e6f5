"""Who belongs to a run and how it is held together: namespaces, control groups, limits."""
