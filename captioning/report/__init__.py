"""One page that compares finished runs: scores, figures, captions, and what each token costs."""

from captioning.report.comparison import Comparison, compare
from captioning.report.page import write_report
from captioning.report.table import comparison_table

__all__ = ["Comparison", "compare", "comparison_table", "write_report"]
