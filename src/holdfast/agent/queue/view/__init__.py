"""The queue seen from outside: list, one job with its reasons and estimate, check. Nothing is changed here."""
