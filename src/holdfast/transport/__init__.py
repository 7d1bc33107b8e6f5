"""How bytes travel to and from one box. Knows neither runs nor bundles; `base` is the contract."""
