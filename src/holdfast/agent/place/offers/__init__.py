"""What a place has to offer a job right now, for a desk that chooses among places."""
