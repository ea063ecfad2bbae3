"""Empty: lmms-eval looks for a plugin's tasks here, but this plugin only adds models."""
