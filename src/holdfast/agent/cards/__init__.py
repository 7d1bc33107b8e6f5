"""The cards of a box seen from outside of any run: list, health, usage, idle holders, reservations, what is set aside.

Each file offers the functions of one question or act, which answer with a record. Nothing here prints or asks.
"""
