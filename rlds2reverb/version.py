"""The version, which setup.py reads without importing the package."""

__version__ = '0.1.0'
