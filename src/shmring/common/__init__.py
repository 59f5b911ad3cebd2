"""Support that every house uses and that knows no ring: checks of arguments, ends, forks."""
