"""Names the models of this plugin for lmms-eval, {module: class}."""

AVAILABLE_MODELS = {"captioner": "CheckpointLmm"}
