from .blocks import Blocks as Blocks
from .blocks import divide as divide
from .blocks import single_blocks as single_blocks
from .building import CnnHypergraph as CnnHypergraph
from .building import evaluate_parts as evaluate_parts
from .hypergraph import Hypergraph as Hypergraph
from .shares import PartShares as PartShares
from .shares import part_shares as part_shares
