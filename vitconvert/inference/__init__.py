"""A model's answers about images: the likeliest classes, and features."""
