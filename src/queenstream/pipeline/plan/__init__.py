"""The plan of a pipeline: its nodes, how it is checked, described, drawn and fingerprinted."""
