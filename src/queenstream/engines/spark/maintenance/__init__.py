"""Work on a checkpoint while no run uses it: rescale it, copy it, compare it with a changed plan."""
