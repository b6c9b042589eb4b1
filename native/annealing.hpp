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
  double hottest, coldest;  // temperatures, relative to the volume of the start
  double price;  // of work above a capacity at first, in volumes per total work
  std::int64_t most_rows;
};

struct AnnealingResult {
  Rows rows;
  std::int64_t volume, overload;
};

// The best division that is met: least overload first, then least volume. `go_on` is asked before
// every kStepsBetweenQuestions steps; when it says no, the best so far is returned.
AnnealingResult anneal(const SymmetricModel& model, Span<std::int64_t> capacities,
                       const Rows& start, const AnnealingOptions& options,
                       const std::function<bool()>& go_on);

}  // namespace hgpart
