"""From logits to tokens: sampling, log-probabilities, token-mask matchers. Torch."""
