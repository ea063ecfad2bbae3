"""Provides SMILE (semipermeable maximum likelihood, arXiv 2306.13460) and other objectives."""
# ruff: noqa: F401

from smile.captions import (
    captions_of_turns,
    segments_from_cu_seq_lens,
    segments_from_position_ids,
)
from smile.mle import mle_loss
from smile.objective import OBJECTIVES, Objective, ObjectiveOutput, parse_objective
from smile.smile import SmileLoss, smile_loss
from smile.subsetting import random_subset_loss, reverse_subset_loss
