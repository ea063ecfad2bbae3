"""Contains the programs of SMILE: training, evaluation, bulk captioning and reports."""
