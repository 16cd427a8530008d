"""Conversion jobs on Apache Beam, on whatever runs Beam.

It needs the extra: `pip install '.[beam]'` in a clone.
"""
