"""ATen operator -> what it does to channels, how a part's share is cut, multiply-accumulates."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
