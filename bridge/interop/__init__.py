"""The memory and the order that both libraries share: contexts, streams, views, conversions."""
