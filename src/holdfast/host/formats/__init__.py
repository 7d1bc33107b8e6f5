"""Files of other programs: data sets, packages, readable text, the library for the job."""
