"""Transforms of whole episodes, most of them with their inverse, and filters.

They select, rename, scale, clip, normalise and thin out steps; images are
decoded late, on the frames that are used.
"""
