"""What is known of metrics by their names. Imports no torch."""

OFFICIAL = (
    *("acc_avg", "acc_all", "acc_wg", "adj_acc_avg", "acc_worst_region", "acc_worst_year"),
    *("10th_percentile_acc", "F1-macro_all", "recall-macro_all", "ap"),
    *("precision_at_global_recall_all", "precision_at_global_recall_wg"),
)
"""What the package `wilds` calls its proportions."""
PROPORTIONS = (
    *("accuracy", "balanced_accuracy", "worst_group_accuracy", "agreement", "macro_f1", "auroc"),
    *OFFICIAL,
)
"""Metrics in [0, 1] that are printed in %."""
HIGHER = {*PROPORTIONS, "r_all", "r_wg"}
"""Metrics of which more is better; of any other, less is."""


def is_proportion(metric: str) -> bool:
    """Whether a metric is in [0, 1] and printed in %; `accuracy[0, red]` is, of one group."""
    return metric.partition("[")[0] in PROPORTIONS


def is_higher_better(metric: str) -> bool:
    """Whether more of a metric is better, also of that of one group."""
    return metric.partition("[")[0] in HIGHER
