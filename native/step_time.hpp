// How long a step of a batch in micro-batches takes, kept up to date; see
// src/hgpart/partition/problem/objectives/seconds.py.
#pragma once

#include <cstdint>
#include <vector>

#include "goal.hpp"

namespace hgpart {

// A part of the busiest seconds works on each micro-batch in turn; the first of them goes through
// all layers, each as slow as the largest share of it:
//
//   ((m - 1) max(work + links) + sum over layers of max(work of the layer) + max(links)) / m
//
// each maximum over the parts, with the work of each as long as it takes there. Sums are of whole numbers, so that a change taken back leaves none.
class StepTime {
 public:
  StepTime(const Goal& goal);

  void add_work(std::int32_t type, std::int32_t part, std::int64_t amount);
  // With what each part sends and receives, in units of the links' costs.
  double value(const std::vector<std::int64_t>& exchanged) const;
  // The same where the largest are means that fall with all of the larger ones.
  double smooth_value(const std::vector<std::int64_t>& exchanged) const;

 private:
  template <typename Largest>
  double combined(const std::vector<std::int64_t>& exchanged, Largest largest) const;

  const std::int32_t k_;
  const Goal goal_;
  std::vector<std::int64_t> loads_;       // of each part
  std::vector<std::int64_t> of_layers_;   // of each layer in each part
  std::vector<std::int64_t> largest_;     // of each layer
  std::int64_t path_ = 0;                 // their sum
};

}  // namespace hgpart
