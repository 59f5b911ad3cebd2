"""Code that every package uses and that needs no ring: arguments, closing, imports, forks."""
