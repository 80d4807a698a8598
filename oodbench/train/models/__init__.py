"""Trained models: loaded as modules, scored, and averaged."""
