"""Text for training and scoring: corpora, document files, tokenizers, downloads."""
