"""Many runs trained as one program.

Runs of a group differ in numbers alone. `packing` says who is trained together and how many, `program`
trains them, `linear` and `optimizers` are its layers and updates.
"""
