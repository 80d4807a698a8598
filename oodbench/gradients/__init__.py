"""Every unit's gradient, from one backward pass: `backward` runs it, `layers` knows each layer.

A unit is an environment or an example. Layers run by functions of ours (`module.__dict__["forward"]`) for
the length of one backward pass, instead of hooks on them, because these keep a product of two
factors where a hook would be handed the gradient that has already been summed over units. It
imports `networks`, and knows no methods.
"""
