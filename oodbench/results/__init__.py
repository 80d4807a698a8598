"""What is on disk of a sweep, and frames of it: the only reader and writer of a results directory.

It imports the ground alone.
"""
