"""Writes, merges, reads and serves Reverb checkpoints.

A server of a trainer that starts from a checkpoint is ready as soon as it has
read it.
"""
