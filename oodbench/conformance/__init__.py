"""The contract of a method, as a test that anyone can call.

A module of requirements is imported here, so that every one is in `requirements`.
"""

from oodbench.conformance import functions as functions
from oodbench.conformance import updates as updates
from oodbench.conformance.requirement import check_algorithm as check_algorithm
