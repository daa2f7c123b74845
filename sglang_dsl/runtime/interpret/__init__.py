"""Walks the growing graph: values, joins, tools, retries, the record."""
