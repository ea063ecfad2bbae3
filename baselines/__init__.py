"""The classic captioners: RNN, LSTM, LSTM with attention, and Show, Attend and Tell."""

from baselines.build import MODELS, build_classic
from baselines.captioner import ClassicCaptioner
from baselines.decoder import SCHEDULES, RecurrentDecoder, set_teacher_forcing, teacher_forcing
from baselines.image_encoder import ImageEncoder, encoder_names
from baselines.vocabulary import Vocabulary

__all__ = [
    "MODELS",
    "SCHEDULES",
    "ClassicCaptioner",
    "ImageEncoder",
    "RecurrentDecoder",
    "Vocabulary",
    "build_classic",
    "encoder_names",
    "set_teacher_forcing",
    "teacher_forcing",
]
