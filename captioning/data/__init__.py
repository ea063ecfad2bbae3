"""Annotated images as batches of tensors and captions."""

from captioning.data.annotations import ImageId, Sample, read_annotations
from captioning.data.dataset import EvaluationDataset, TrainingDataset, preprocess_caption
from captioning.data.image import (
    MEAN,
    STD,
    evaluation_transform,
    load_image,
    normalise,
    training_transform,
)
from captioning.data.loader import Loader, TrainingLoader, evaluation_loader, training_loader
from captioning.data.prefetch import Prefetcher
from captioning.data.preprocessing import Preprocessing
from captioning.data.randaugment import RandAugment
from captioning.data.sources import annotation_path, read_split, references

__all__ = [
    "MEAN",
    "STD",
    "EvaluationDataset",
    "ImageId",
    "Loader",
    "Prefetcher",
    "Preprocessing",
    "RandAugment",
    "Sample",
    "TrainingDataset",
    "TrainingLoader",
    "annotation_path",
    "evaluation_loader",
    "evaluation_transform",
    "load_image",
    "normalise",
    "preprocess_caption",
    "read_annotations",
    "read_split",
    "references",
    "training_loader",
    "training_transform",
]
