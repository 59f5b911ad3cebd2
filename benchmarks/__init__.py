"""How fast is it, and compared with what? `python benchmarks/run.py`; see README.md."""
