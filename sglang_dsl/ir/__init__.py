"""What to compute: the graph as plain data, its rules, analyses, formats and pictures."""
