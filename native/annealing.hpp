// Simulated annealing of a Division: moves of units, of a layer's whole share, and exchanges.
#pragma once

#include <cstdint>
#include <functional>

#include "division.hpp"

namespace hgpart {

constexpr std::int64_t kStepsBetweenQuestions = 1024;

struct AnnealingOptions {
  std::uint64_t seed;
  std::int64_t steps;
  double hottest, coldest;  // temperatures, relative to the cost of the start
  double price;  // of work above the capacities at first, in costs of the start per total work
  std::int64_t most_rows;
};

struct AnnealingResult {
  Rows rows;
  std::int64_t cost;  // by the objective
  double excess;      // of work and memory, as shares of their limits
};

// The best division that is met: least excess first, then least cost. `go_on` is told before every
// kStepsBetweenQuestions steps how many more are over, or what took as long; when it says no, the
// best so far is returned.
AnnealingResult anneal(const SymmetricModel& model, const Goal& goal, const Rows& start,
                       const AnnealingOptions& options, const std::function<bool(std::int64_t)>& go_on);

}  // namespace hgpart
