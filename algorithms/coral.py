"""Correlation alignment of the environments' features."""

from torch import Tensor

from oodbench.algorithms import Outputs, register

from .feature_matching import FeatureMatching


@register("CORAL", paper="arXiv:1607.01719")
class CORAL(FeatureMatching):
    """Features whose means and covariances are alike in all environments (Deep CORAL).

    The distance is the mean over the pairs of environments of mean_k (m_i - m_j)_k^2 + mean_kl
    (C_i - C_j)_kl^2, with means m and unbiased covariances C of a batch's F features; the covariance
    of one example is 0. This is the form of arXiv:2007.01434's code; the paper matches a source and a
    target by covariances alone, with |C_S - C_T|^2 / (4 F^2): its weight is 4 * penalty_weight.
    The mean over pairs of |a_i - a_j|^2 is 2 / (E - 1) (sum_i |a_i|^2 - E |mean a|^2), so that the
    cost is linear in the number E of environments.
    """

    def distance(self, out: Outputs) -> Tensor:
        """The squared distances of the means and of the covariances, averaged over pairs."""
        environments, examples, features = out.features.shape
        means = out.features.mean(1)
        centred = out.features - means.unsqueeze(1)
        pooled = centred.flatten(0, 1)
        each, together = squared_norm(centred, centred).sum(), squared_norm(pooled, pooled)
        of_means = (means - means.mean(0)).square().sum() / features
        of_covariances = (each - together / environments) / (features * max(1, examples - 1)) ** 2
        return 2 / max(1, environments - 1) * (of_means + of_covariances)


def squared_norm(scaled: Tensor, x: Tensor) -> Tensor:
    """|sum_i w_i x_i x_i'|^2 (Frobenius), (...), from w_i x_i (`scaled`) and x_i, (..., N, F) each.

    It is the trace of the square of S'x (F x F) or of S x' (N x N); the smaller of them is computed.
    """
    examples, features = x.shape[-2:]
    product = scaled @ x.mT if examples < features else scaled.mT @ x
    return (product * product.mT).sum((-2, -1))
