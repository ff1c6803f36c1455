"""Features and classes of any number of images, in Parquet files that appear whole or not at all.

The images are frozen into a plan: an ordered list of units. Whoever computes a unit writes one
file, a shard, and that file is the commit: nothing else coordinates. So a run that was killed goes
on where it was, and several processes or machines can share one.
"""
