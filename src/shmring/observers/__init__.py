"""Observers of a host: what its rings and sidecars look like, and what is wrong with them."""
