"""Shape: RLDS steps to TF-Agents trajectories."""
