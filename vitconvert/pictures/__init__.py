"""A model's attention and features, as pictures of images."""
