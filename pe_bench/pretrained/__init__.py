"""Pretrained checkpoints: import and export of Hugging Face folders, encodings in transformers."""
