"""The places that this account knows: ``places.toml``, aliases of ssh, and what was measured of each."""
