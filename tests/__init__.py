"""Named here, as an installed package may have a `tests` of its own."""
