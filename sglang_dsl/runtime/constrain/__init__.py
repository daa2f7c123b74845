"""Constraint specs, their audit, and a pure-Python matcher engine. No torch."""
