// What a partition costs, by the definitions (thesis 2.5 and 3.2).
#pragma once

#include <cstdint>
#include <vector>

#include "hypergraph.hpp"

namespace hgpart {

// Sum over nets of cost * (lambda - 1); lambda is the number of distinct parts among a net's pins.
std::int64_t communication_volume(const Hypergraph& hypergraph, const Partition& partition);

// Sum of the costs of the nets with lambda > 1.
std::int64_t cut_net(const Hypergraph& hypergraph, const Partition& partition);

// Sum of the weights of each part's vertices; k entries.
std::vector<std::int64_t> part_loads(const Hypergraph& hypergraph, const Partition& partition);

// Bytes that part s sends to part r, at [s * k + r].
std::vector<std::int64_t> traffic(const Hypergraph& hypergraph, const Partition& partition);

// Layers of which part s sends something (a net of cost > 0) to part r, at [s * k + r].
std::vector<std::int64_t> messages(const Hypergraph& hypergraph, const Partition& partition);

}  // namespace hgpart
