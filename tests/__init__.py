"""README.md says what stands where. A package, as an installed one may have a `tests` of its own."""
