"""Fast parts: tensors in, tensors out. Each operation is one folder with one checked door."""
