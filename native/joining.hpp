// Which units of work parts do at once, and in which order; see
// src/hgpart/placement/shares/joining.py.
#pragma once

#include <cstdint>
#include <vector>

#include "hypergraph.hpp"

namespace hgpart {

struct WorkUnits {
  Span<std::int32_t> parts;     // of each unit
  Span<double> seconds;         // that grow with the samples
  Span<double> once;            // that do not, and are equal for all units that are alike
  Span<std::int32_t> alike;     // units of a part with the same number can be done at once; -1: none
  Span<std::int64_t> pointers;  // the units before each unit (CSR), all with smaller numbers
  Span<std::int32_t> needs;
  Span<double> travels;         // seconds that their results take to arrive
};

using Group = std::vector<std::int32_t>;

// The numbers of all units, grouped by what is done at once, in the order of a list schedule.
// `most` is the number of units in all schedules that are tried, and an end that is later by the
// fraction `rounding` is not later. Throws InvalidHypergraph if a number is out of range, or if
// units that are alike need each other.
std::vector<Group> joined(const WorkUnits& units, std::int64_t most, double rounding);

}  // namespace hgpart
