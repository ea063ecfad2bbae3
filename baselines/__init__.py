"""Provides the classic captioners: RNN, LSTM, LSTM with attention, and Show, Attend and Tell.

Names are imported at first use, so that reading a configuration does not import torchvision.
"""

from adapters.lazy import lazy_names

__getattr__ = lazy_names(
    __name__,
    {
        "captioner": "ClassicCaptioner",
        "configured": "MODELS",
        "image_encoder": "ImageEncoder",
        "vocabulary": "Vocabulary",
    },
)
