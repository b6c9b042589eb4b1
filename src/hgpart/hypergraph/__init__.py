"""ChannelGraph + Work -> CnnHypergraph, and the figures of a partition of it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
