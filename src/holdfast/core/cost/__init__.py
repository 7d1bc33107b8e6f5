"""What a rented place costs: arithmetic alone. Pure."""
