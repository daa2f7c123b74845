"""Cassettes: what a model answered, kept as data, and played back without it."""
