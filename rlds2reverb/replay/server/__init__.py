"""Writes items into running Reverb servers, and samples them.

Items are sent many at a time, and counted when the server confirms them.
"""
