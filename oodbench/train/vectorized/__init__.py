"""Many runs trained as one program, with the same numbers whoever is trained beside them.

Runs of a bundle differ in numbers alone: trial, draw, and hyperparameters that fix no shape. `program`
holds their parameters in one matrix, one run a row, and does their updates and evaluations under
`vmap`; `linear` and `optimizers` are its layers and updates; `bundles` says which runs are vectorized
and how many at once.

What has to hold is that a run's records are the same, on a CPU bit for bit, whichever runs are in
its program: those that were at hand when it started differ from those that are left after a kill,
and a resumed sweep is to end with the results of an undisturbed one. These rules see to it:

- Whether a run is vectorized follows from the run alone (`bundles.why_alone`).
- A program of one run holds it twice, because batched kernels round a batch of one differently
  (`program._filled`), and as often as it takes for no tensor to have a remainder (`places`).
- Hyperparameters that can be drawn are tensors in every program, even where all its runs agree on
  them, because a Python number is folded into the arithmetic in another way (`program._varying`).
- Every operation over runs is elementwise in them or a batched product, so that a row's bits do not
  depend on the other rows.
- Runs at the same step are trained together; those behind catch up first, and each stops at the
  steps at which it would evaluate or could save if it were by itself (`loop.Training.stop`).
- A checkpoint holds one run, as if it had been by itself, and any program goes on from it.
- A run whose bundle cannot be vectorized, or has failed at it, is trained by itself from its last
  checkpoint on.

On a GPU the kernels that are chosen depend on the sizes, and the same runs agree up to round-off.
"""
