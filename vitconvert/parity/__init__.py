"""Proof that a model computes what an independent implementation computes."""
