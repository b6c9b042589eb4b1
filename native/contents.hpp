// The least that the contents of a single part can cost at given prices: what bounds a volume.
//
// Contents are shares of what the items (filters of a layer, all alike) do. Of each filter a part
// has all samples, some share t of them that is the same wherever it is not all or none, or none;
// the filters of a class lie alike, but for those of one class, of which two kinds may be mixed.
// `cheapest_contents.cpp` says why no contents cost less than the best of these. Some items are
// readings, without work: `hgpart.partition.bounds.part_model` has what they are.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "hypergraph.hpp"

namespace hgpart {

struct ContentsModel {
  Span<double> work;          // of each item, as a share of all work
  Span<double> parameters;    // cost that a part pays for filters of each item of which it has any
  Span<double> demands;       // what all parts have of each item: 1, or 0 of a reading
  Span<double> credits;       // what each item costs less, in each part
  Span<std::int32_t> classes; // of each item: filters of a class that have the same index are tied
  Span<double> costs;         // of each net
  Span<std::int64_t> pointers;  // CSR by item: the nets that each touches,
  Span<std::int32_t> nets;
  Span<bool> dense;             // and whether it does as a whole, if a part has any of the item
  Span<double> capacities;      // of each part, as a share of all work, the largest first
  bool sliced;                  // whether a part can have some of the samples

  std::int64_t items() const { return work.size; }
  bool is_reading(std::int64_t item) const { return demands[item] == 0.0; }
};

// No partition within the capacities sends less; in units of the costs, or none: -infinity. `go_on`
// ends it early; so do so many operations, a measure of time that is the same on all machines.
double contents_bound(const ContentsModel& model, double operations,
                      const std::function<bool(double)>& go_on);

}  // namespace hgpart
