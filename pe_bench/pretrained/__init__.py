"""Pretrained checkpoints: Hugging Face folders in and out, and encodings inside transformers."""
