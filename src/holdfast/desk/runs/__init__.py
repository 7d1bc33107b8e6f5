"""What the desk knows of runs elsewhere: last sightings, asking many places at once, the lists made of both."""
