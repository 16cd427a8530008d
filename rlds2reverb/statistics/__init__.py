"""Statistics of a data set's fields, in one pass, and kept beside the data.

`transforms` normalises with them.
"""
