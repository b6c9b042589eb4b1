"""ChannelGraph + work + k + eps -> Partition: the stages, the solvers, what they are asked for."""

from hgpart.partition.partition import Partition
from hgpart.partition.stages import partition_graph

__all__ = ["Partition", "partition_graph"]
