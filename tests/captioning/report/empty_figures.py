"""Figures without drawings, for tests of the text around them."""

from matplotlib.figure import Figure


def leave_figures_empty(monkeypatch):
    """Leave only the descriptions of figures: to draw one takes a third of a second."""
    monkeypatch.setattr(Figure, "savefig", lambda self, file, **_: file.write("<svg ></svg>"))
