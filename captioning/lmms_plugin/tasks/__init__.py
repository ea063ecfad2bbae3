"""lmms-eval looks for a plugin's tasks here; there are none: any task with one image will do."""
