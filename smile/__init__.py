"""Provides SMILE (semipermeable maximum likelihood, arXiv 2306.13460) and other objectives."""
# ruff: noqa: F401

from smile.objective import (
    OBJECTIVES,
    Objective,
    ObjectiveOutput,
    parse_objective,
    smile_loss,
)
from smile.packing import captions_of_turns, segments_from_position_ids
