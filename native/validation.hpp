// Checks at the door: what passes them is never read out of bounds, and no 64-bit sum wraps.
#pragma once

#include <cstdint>

#include "array_checks.hpp"
#include "hypergraph.hpp"

namespace hgpart {

// The pins are many, and reading them takes longer than all else: who reads them checks them on
// the way, net by net.
void check_all_but_pins(const Hypergraph& hypergraph);
void check_pins(const Hypergraph& hypergraph, std::int64_t first, std::int64_t count);

void check_partition(const Partition& partition, const Hypergraph& hypergraph);

// Largest loads: one for each part, and so k.
void check_capacities(Span<std::int64_t> capacities);

// For results with an entry for each pair of parts.
void check_table_fits(std::int64_t k);

}  // namespace hgpart
