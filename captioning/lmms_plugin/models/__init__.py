"""The models that lmms-eval finds here: {module: class}."""

AVAILABLE_MODELS = {"captioner": "CheckpointLmm"}
