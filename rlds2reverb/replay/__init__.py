"""Out: trajectories into Reverb."""
