"""Every unit's gradient, from one backward pass: `backward` runs it, `layer_rules` knows the layers.

A unit is an environment or an example. Layers run by rules of ours (`module.__dict__["forward"]`) for
the length of one backward pass, instead of hooks on them, because a rule keeps a product of two
factors where a hook would be handed the gradient that has already been summed over units. It
imports `networks`, and knows no methods.
"""
