"""From RLDS steps to TF-Agents trajectories: frames, and sequences of frames.

Every episode is checked here before anything of it comes out.
"""
