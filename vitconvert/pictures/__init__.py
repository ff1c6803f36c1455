"""What a model attends to, and its features, as pictures of images."""
