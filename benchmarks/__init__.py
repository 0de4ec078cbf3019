"""How fast any2ds is, measured on the machine that runs it: `python -m benchmarks CASE…`.

`case.py` says what a benchmark is, `runner.py` runs it, `tables.py` shows its result, `cases/` has all of them.
"""
