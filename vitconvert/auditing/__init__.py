"""What of a file landed in a model, by content: for any loading code and any `nn.Module`."""
