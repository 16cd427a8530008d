"""An episode in memory: its steps, the paths of its fields, its blocks.

Everything else builds on these modules, and they build on nothing here.
"""
