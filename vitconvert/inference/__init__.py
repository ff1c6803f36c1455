"""A model's answers about photographs: the likeliest classes, and features."""
