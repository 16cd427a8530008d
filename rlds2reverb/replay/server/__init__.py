"""Inserts items into running Reverb servers, and samples them."""
