"""Empirical risk minimisation."""

from oodbench.algorithms import Algorithm, Problem, register


@register("ERM", paper="Vapnik, The Nature of Statistical Learning Theory (1995)")
class ERM(Algorithm):
    """The mean over the training environments of their mean losses.

    R = mean_e R_e with R_e = mean_i l(f(x_ei), y_ei), so environments of any size count alike.
    """

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """Change nothing: the method is ERM at any hyperparameters."""
        return {}
