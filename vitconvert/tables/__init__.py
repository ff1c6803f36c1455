"""The language of `weights_map/`: templates, axes, expressions, tables, detection."""
