"""Writes, merges, reads and serves Reverb checkpoints."""
