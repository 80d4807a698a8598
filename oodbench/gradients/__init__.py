""""""

from oodbench.gradients.backward import BATCH_NORM as BATCH_NORM
from oodbench.gradients.backward import Reduction as Reduction
from oodbench.gradients.backward import Units as Units
from oodbench.gradients.backward import combined_backward as combined_backward
from oodbench.gradients.backward import stacked_gradients as stacked_gradients
from oodbench.gradients.backward import visit_gradients as visit_gradients
