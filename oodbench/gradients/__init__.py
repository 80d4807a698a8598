"""Every unit's gradient, from one backward pass: `backward` runs it, `layers` knows each layer.

A unit is an environment or an example. For one backward pass each layer's `forward` is replaced in its
`__dict__`: a hook would only receive the gradient that has already been summed over units, where our
function keeps the two factors of each unit's. The package imports `networks`, and knows no methods.
"""
