"""Targets of papers that are computed, or read off several sweeps, instead of trained by one."""
