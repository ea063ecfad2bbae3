"""Provides the classic captioners: RNN, LSTM, LSTM with attention, and Show, Attend and Tell."""
# ruff: noqa: F401

from baselines.captioner import MODELS, ClassicCaptioner
from baselines.image_encoder import ImageEncoder
from baselines.vocabulary import Vocabulary
