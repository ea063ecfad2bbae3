"""Figures without drawings, for tests of the text around them."""

from markupsafe import Markup

from captioning.report import figures, plane


def leave_figures_empty(monkeypatch):
    """Leave only the descriptions of figures: to draw one takes a third of a second."""

    def empty(figure, name, description):
        return Markup('<svg role="img" aria-label="{}"></svg>').format(description)

    for module in (figures, plane):
        monkeypatch.setattr(module, "to_svg", empty)
    monkeypatch.setattr(plane, "label_points", lambda *_: None)
