"""Proposes a table for names that nobody knows, by a ViT that is known."""
