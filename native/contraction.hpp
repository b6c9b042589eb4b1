// Clusters of vertices become one vertex each; partitions that keep them whole cost what they did.
#pragma once

#include <cstdint>
#include <vector>

#include "hypergraph.hpp"

namespace hgpart {

struct ContractedHypergraph {
  std::vector<std::int64_t> weights;
  std::vector<std::int64_t> costs;
  std::vector<std::int64_t> pointers;
  std::vector<std::int32_t> pins;
  std::vector<std::uint8_t> gathers;  // 0 or 1; std::vector<bool> would be packed
  std::vector<std::int32_t> net_layers;
};

// `clusters` holds the cluster of each vertex, below `count`. The pins of a net become the
// distinct clusters among them, the root's first; a net within one cluster is dropped; nets with
// the same root, pins, direction and layer are merged, their costs added. Nets, and the pins of a
// net, stay in the order of first appearance.
ContractedHypergraph contract(const Hypergraph& hypergraph, Span<std::int32_t> clusters,
                              std::int64_t count);

}  // namespace hgpart
