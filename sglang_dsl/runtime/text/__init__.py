"""Tokenizers, chat templates, seams, incremental UTF-8, stops. No torch."""
