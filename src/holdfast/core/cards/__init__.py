"""Which cards a run gets, and what people who share them agreed on. Pure."""
