"""Our updates beside those of another implementation."""
