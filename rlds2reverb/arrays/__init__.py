"""Normalising, resizing and augmenting arrays of NumPy.

The definitions serve the functions of `transforms`, which work on tensors, too.
Nothing here imports TensorFlow.
"""
