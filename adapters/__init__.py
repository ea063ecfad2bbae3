"""Layers of low rank beside the weights of a captioner that stay as they are.

peft makes them and names them; it is imported where it is used.
"""
