"""The `sglang-dsl` command: wiring only."""
