"""Every unit's gradient, from one backward pass: `backward` runs it, `layer_rules` knows the layers.

A unit is an environment or an example. Layers run by rules of ours (`module.__dict__["forward"]`) for
the length of one backward pass, instead of hooks on them, because a rule keeps a product of two
factors where a hook would be handed the gradient that has already been summed over units. It
imports `networks`, and knows no methods.
"""

from oodbench.gradients.backward import BATCH_NORM as BATCH_NORM
from oodbench.gradients.backward import Reduction as Reduction
from oodbench.gradients.backward import Units as Units
from oodbench.gradients.backward import combined_backward as combined_backward
from oodbench.gradients.backward import stacked_gradients as stacked_gradients
from oodbench.gradients.backward import visit_gradients as visit_gradients
