"""The checkpoint of a run on Spark: its folder, its batches, its state, and going back in it."""
