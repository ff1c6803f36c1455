"""Checkpoints of torch: read in every form that torch.save has written, written in its newest.

pickle_reader    the opcodes of pickles, read without calling anything
unwrapping       the named tensors among all that a pickle describes, and where they lie
reading          what the pickle of a checkpoint may name, and what it describes
rescue           whole objects that were saved, of which the tensors are read as data
writing          what torch.save would write, written without torch
checkpoint       the files themselves: zip archives since torch 1.6, and as they were before
pickled_arrays   plain pickles of NumPy's arrays, a format of their own
torchscript      programs with weights, a format of their own
"""
