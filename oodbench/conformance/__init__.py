"""The contract of a method, as a test that anyone can call.

A module of rules is imported here, so that every rule is in `checks`.
"""

from oodbench.conformance import functions as functions
from oodbench.conformance import updates as updates
from oodbench.conformance.check import check_algorithm as check_algorithm
