"""RLDS data sets in and out of disk: read, recorded, written, saved and mixed.

Flat arrays, HDF5 files and Minari data sets become RLDS episodes here, too.
"""
