"""Configurations, weights, the transformers adapter, pools of tensors. Torch."""
