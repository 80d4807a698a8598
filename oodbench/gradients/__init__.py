"""Every unit's gradient from one backward pass: `backward` runs it, `layers` handles each layer.

A unit is an environment or an example. During the pass each layer's `forward` is replaced in its
`__dict__`: a hook on the parameters would only see gradients summed over units, while the replacement keeps
the factors of each unit's gradient.
"""
