"""The tests mirror src/holdfast: tests/<package>/test_<module>.py."""
