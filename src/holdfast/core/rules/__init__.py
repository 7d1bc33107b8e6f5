"""What a site imposes on the jobs of its box. Pure."""
