"""Normalization, resizing and augmentation of arrays, in NumPy.

`transforms` does the same with tensors, by the definitions in this package.
Nothing here imports TensorFlow.
"""
