"""A job as a person writes it: job file, options, notation of values, and their schema."""
