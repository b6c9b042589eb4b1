"""hgpart: which device computes which filters of a CNN, by hypergraph partitioning.

The public names, in the order of the stages, are listed in ``__init__.pyi``::

    nn.Module --trace--> TracedModel --channel_graph--> ChannelGraph --flops, profile--> Work
        --cnn_hypergraph--> CnnHypergraph --partition_graph--> Partition --save_plan--> plan file
"""

import time
from typing import Any

import lazy_loader

_STARTED = time.time()  # before any other file of hgpart, or of a model's package, is read

# A name is imported when it is asked for: torch takes a second, which `hgpart --help` and a wrong
# option need not wait for, and Ctrl-C meets a command that can answer.
_import_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("hgpart")
    return _import_name(name)
