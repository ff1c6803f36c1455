"""What a photograph becomes: how each project turns it into a model's input."""
