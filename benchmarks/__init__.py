"""Benchmarks. Each takes `--check` and then exits 1 where a bar is missed, printing figure and bar."""
