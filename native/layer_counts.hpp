// Annealing of how many slices of the batch of each layer each part computes.
//
// The coarse picture of a partition over slices: filters of a layer stay together, and which slices
// a part has is left open, so that a step costs some additions where one of slices costs hundreds.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "hypergraph.hpp"

namespace hgpart {

struct LayerModel {
  Span<std::int64_t> loads;       // of each layer, in all slices
  Span<std::int64_t> parameters;  // bytes of each: for all parts but one that have any of it
  Span<std::int32_t> makers, readers;  // of maps: layers, the first before the second
  Span<std::int64_t> maps;        // bytes that the second reads of the first, in all slices
  Span<std::int64_t> capacities;  // work of each part
  std::int64_t slices;

  std::int64_t layers() const { return loads.size; }
  std::int64_t parts() const { return capacities.size; }
};

struct CountOptions {
  std::uint64_t seed;
  std::int64_t steps;
  double hottest, coldest;  // temperatures, relative to the cost of the start
  double price;  // of work above the capacities at first, in costs of the start per total work
};

struct CountResult {
  std::vector<std::int32_t> counts;  // slices of part p and layer l at p * layers + l
  double cost;    // bytes
  double excess;  // work above the capacities, as a share of them all
};

// The best that is met from each start, whose counts of a layer add up to the slices: least excess
// first, then least cost. Slices are taken to be equal, and those that two layers have in common in
// a part to be as many as can be.
std::vector<CountResult> anneal_counts(const LayerModel& model,
                                       const std::vector<std::vector<std::int32_t>>& starts,
                                       const std::vector<CountOptions>& options, int threads,
                                       const std::function<bool(double)>& go_on);

}  // namespace hgpart
