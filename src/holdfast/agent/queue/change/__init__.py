"""Orders to the queue: what is asked of jobs, groups and the whole queue; each answers with what it came to."""
