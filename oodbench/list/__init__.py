"""The catalogue: all algorithms, datasets and networks by name, and all about one of them.

It reads names and first sentences from source files, without torch, and imports only the ground;
what is said about one class comes from `algorithms`, `datasets` and `networks`.
"""
