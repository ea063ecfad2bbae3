"""Captioners built and loaded, their checkpoints, generation, scoring and likelihood.

With this package imported, BLIP's reader of checkpoints reads object stores, too.
"""

from BLIP.weights.download import FETCHERS, STORES
from captioning.models.checkpoints import fetched

FETCHERS.update(dict.fromkeys(STORES, fetched))
