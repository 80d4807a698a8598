"""The catalogue: all algorithms, datasets, networks and adaptations by name, and all about one of them."""
