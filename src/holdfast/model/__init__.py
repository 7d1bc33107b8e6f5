"""What things are: the nouns of holdfast as frozen, slotted records.

Standard library only, no I/O, no clock, no decisions. Every other package may import this one; it imports none of them.
"""
