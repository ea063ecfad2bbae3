"""One page that compares finished runs: scores, figures, captions, and what each token costs."""

from captioning.report.comparison import Comparison, compare
from captioning.report.comparison_table import comparison_table
from captioning.report.page import write_report

__all__ = ["Comparison", "compare", "comparison_table", "write_report"]
