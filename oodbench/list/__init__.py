"""The catalogue: all registered classes by name, and everything about one of them.

Names and first sentences are parsed from source files, without torch. Details of a class are read from the
class itself.
"""
