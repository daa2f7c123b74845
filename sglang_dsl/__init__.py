"""Prompt programs as Python functions, and a runtime that knows the whole program."""
