"""The contract of a method, as a test that anyone can call.

It imports algorithms and networks.
"""

from oodbench.conformance.rules import check_algorithm as check_algorithm
