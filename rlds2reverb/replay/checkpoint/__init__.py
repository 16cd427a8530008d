"""Reverb checkpoints without a server: written, merged, and served from.

A trainer's server starts from one in the time that it takes to read it.
"""
