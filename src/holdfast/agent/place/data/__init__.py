"""Files on their way: data sets that a desk pushes, what is missing of one; and files of a run that it copies."""
