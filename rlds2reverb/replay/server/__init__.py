"""Items into a running Reverb server, through an observer or many at a time.

Only what the server has confirmed is counted.
"""
