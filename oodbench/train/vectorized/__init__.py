"""Many runs trained as one program; a run's numbers do not depend on the other runs in it.

Runs of a bundle differ in numbers alone: trial, draw, and hyperparameters that fix no shape. `bundles` says
which runs are vectorized, by the run alone. A row's bits depend on no other row: operations over runs are
elementwise in them or batched products; a program of one run holds it twice, because batched kernels round
a batch of one differently, and as often as it takes for no tensor to have a remainder
(`program.Remainders`); hyperparameters that can be drawn are tensors in every program, because a Python
number is folded into the arithmetic in another way. Runs that are behind catch up first, and each stops at
the steps at which it would by itself, so that any program goes on from its checkpoint. On a GPU the kernels
that are chosen depend on the sizes, and the same runs agree up to round-off.
"""
