"""From header to configuration, plan and tensors, and their changes. Opens no file."""
