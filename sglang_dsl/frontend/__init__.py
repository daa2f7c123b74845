"""How users say it: programs, states, primitives, roles, tracing."""
