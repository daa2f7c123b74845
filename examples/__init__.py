"""Example programs. Each runs on the mock in the tests and on a real model with `sglang-dsl run`."""
