"""Namespaces, the radix tree, pages as integers, leases, eviction, integrity. No torch."""
