"""Who does it and when."""
