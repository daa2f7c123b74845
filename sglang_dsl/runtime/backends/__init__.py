"""Executors: local (the engine on a real model), mock (the same engine on a script)."""
