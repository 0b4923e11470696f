"""Text to train and score on: corpora, files of documents, tokenizers, downloads."""
