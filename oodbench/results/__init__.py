"""The only reader and writer of a results directory, and the frames of its records.

It imports the ground alone.
"""
