"""Images with the exact numbers that a model's own project makes of them, for ports to compare."""
