"""The command line and places: what is sent away, what several places are asked, what a desk has sent here."""
