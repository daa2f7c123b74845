"""The loop, its clock, and the public Engine over a Worker. No torch."""
