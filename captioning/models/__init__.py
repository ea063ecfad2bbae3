"""What is asked of any captioner: built, loaded, many captions, one word by word, likelihood.

Whatever here reads a checkpoint reads it from an object store, too.
"""

from BLIP.weights.download import FETCHERS, STORES
from captioning.models.checkpoints import fetched

FETCHERS.update(dict.fromkeys(STORES, fetched))
