// Moves single vertices of a partition: first to restore the balance, then to lower the volume.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "hypergraph.hpp"

namespace hgpart {

// `parts` holds the part of each vertex and is changed; `capacities` the largest load of each part.
// Overloaded parts hand vertices, cheapest first by volume per weight, to parts with room, or
// exchange a heavier for a lighter one. Then every vertex, in a random order for `seed`, moves where
// that lowers the volume without exceeding a capacity, until a round changes nothing; and all that
// again where it has made room for what was too much. A load that can't be brought below its
// capacity stays: the caller judges the balance. `go_on` is asked now and then; when it says no, the
// partition stays as it is by then. `may_lie` says by vertex and part where vertices may move to;
// empty, they may move anywhere.
void refine(const Hypergraph& hypergraph, std::vector<std::int32_t>& parts,
            Span<std::int64_t> capacities, Span<bool> may_lie, std::uint64_t seed,
            const std::function<bool()>& go_on);

}  // namespace hgpart
