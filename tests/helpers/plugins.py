"""The file of a method outside the package."""

METHOD_FILE = '''
from oodbench.algorithms import Algorithm, Outputs, register


@register("{name}", paper="arXiv:0000.00000")
class Submitted(Algorithm):
    """A multiple of the mean of the risks."""

    def objective(self, out: Outputs):
        return {factor} * out.risks.mean()
'''
