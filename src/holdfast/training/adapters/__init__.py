"""Thin bridges to frameworks that own the loop; each is imported by whoever uses it, and imports its framework then.

`huggingface`, `lightning`, `accelerate`, `keras`; docs/adapters.md says for each what continues exactly and what does
not. A loop of one's own in torch, numpy or jax needs none: `Run.track` and `Run.batches` are enough.
"""
