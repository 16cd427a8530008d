"""Trajectories laid out as the chunks and items of Reverb, and encoded.

Below it, `server` writes them to a running server and `checkpoint` to disk.
"""
