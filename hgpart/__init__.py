"""hgpart: which device computes which filters of a CNN, by hypergraph partitioning.

The public names, in the order of the stages, are listed in ``__init__.pyi``::

    nn.Module --trace--> TracedModel --channel_graph--> ChannelGraph --flops, profile--> Work
        --cnn_hypergraph--> CnnHypergraph --partition_graph--> Partition --save_plan--> plan file
"""

from importlib.metadata import version

import lazy_loader

# A name is imported when it is asked for: torch takes a second, which `hgpart --help` and a wrong
# option need not wait for.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = version("hgpart")
