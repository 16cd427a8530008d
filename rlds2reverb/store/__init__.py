"""Rows of bytes of a fixed size, in memory or in mapped files, by NumPy.

Frames and steps are stored alike: a `RowLayout` says where in a row each column
lies, a `RowWriter` writes rows, and strings that lie in the files of a data set
stay there.
"""
