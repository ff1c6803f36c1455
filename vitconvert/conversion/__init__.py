"""Checkpoints as other programs want them: directories, companions, provenance."""
