"""Conversion jobs on Apache Beam, on whatever runs Beam.

It needs the extra: `pip install rlds2reverb[beam]`.
"""

from rlds2reverb.jobs.beam.runner import BeamRunner
