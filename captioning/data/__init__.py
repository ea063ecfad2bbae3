"""Reads annotated images and makes batches of tensors and captions.

Names are imported at first use, so that a program that reads no image does not import torchvision.
"""

from adapters.lazy import lazy_names

__getattr__ = lazy_names(
    __name__,
    {
        "annotations": "Sample read_annotations",
        "augmentation": "training_transform",
        "dataset": "EvaluationDataset TrainingDataset preprocess_caption",
        "image": "MEAN STD Preprocessing decode evaluation_transform load_image normalise",
        "loader": "Loader Prefetcher TrainingLoader evaluation_loader training_loader",
        "shards": "ShardDataset Shards",
        "sources": "annotation_paths check_before_training check_images read_split references",
    },
)
