"""What a captioner is to the rest of the project, and which there are."""
