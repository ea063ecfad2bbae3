"""Reads annotated images and makes batches of tensors and captions."""
# ruff: noqa: F401

from captioning.data.annotations import Sample, read_annotations
from captioning.data.augmentation import training_transform
from captioning.data.dataset import EvaluationDataset, TrainingDataset, preprocess_caption
from captioning.data.image import (
    MEAN,
    STD,
    Preprocessing,
    decode,
    evaluation_transform,
    load_image,
    normalise,
)
from captioning.data.loader import (
    Loader,
    Prefetcher,
    TrainingLoader,
    evaluation_loader,
    training_loader,
)
from captioning.data.shards import ShardDataset, Shards
from captioning.data.sources import annotation_paths, described_division, read_split, references
