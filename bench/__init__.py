"""The benchmarks: ``python -m bench``. What they measure is in ``docs/benchmarks.md``."""
