"""The kinds of methods, by what a method changes. Imports nothing."""

KINDS = {
    "risk": "how the environments' risks become one",
    "penalty": "what is added to the risk",
    "gradient": "how the environments' gradients become one",
    "batch": "the batch that is trained on",
    "adversarial": "a part of the network that another part works against",
    "step": "the step from gradients to parameters",
    "group": "what groups of examples count for",
    "estimator": "a predictor of its own in place of the network",
}
"""What the methods of each kind change."""
USUAL = "risk"
"""The kind of a method that names none."""
