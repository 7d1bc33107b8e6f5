"""Waiting for jobs and runs until each is proven done, or nothing goes on by itself any more."""
