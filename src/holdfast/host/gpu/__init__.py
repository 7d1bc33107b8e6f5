"""The cards of this box: what there is, who uses it, how it feels, what is set aside."""
