// What each part sends and receives, kept up to date for objectives that the volume does not tell.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "budget.hpp"
#include "goal.hpp"

namespace hgpart {

// A mean of what each part has that is near the largest, but falls with all of the larger ones.
template <typename OfPart>
double smooth_largest(std::int32_t k, OfPart of_part) {
  double most = 0, sum = 0;
  for (std::int32_t part = 0; part < k; ++part) most = std::max(most, of_part(part));
  if (most <= 0) return 0;
  for (std::int32_t part = 0; part < k; ++part) {
    const double share = of_part(part) / most;
    const double fourth = share * share * share * share;
    sum += fourth * fourth;
  }
  return most * std::pow(sum, 0.125);
}

// The part r of a net's root exchanges the net's cost with every other part of the net. With R(A, r)
// what the nets of a set A cost whose root lies in r, and P(A, r, p) what those of them cost that
// have a pin in p beside the set, part r sends to part p of these nets
//
//   R(A, r) where p holds a vertex of the set, P(A, r, p) where it doesn't.
//
// Where the nets of a set gather, p sends as much to r.
class Traffic {
 public:
  // `gathers`: whether the nets of each set do.
  Traffic(const Goal& goal, std::vector<char> gathers, Budget& memory);

  std::int64_t links() const { return links_cost_; }
  std::int64_t largest() const;
  double smooth_largest() const;
  // Of each part: bytes, or where time is the objective what they cost on their links.
  const std::vector<std::int64_t>& exchanged() const { return exchanged_; }

  // Nets of that cost (less where it is negative) of a set, rooted in a part, have a pin in another
  // one; `keeps`: what is received counts in memory; `outside`: that one holds no vertex of the set.
  void pin(std::int32_t set, std::int32_t root, std::int32_t part, std::int64_t cost, bool gathers,
           bool keeps, bool outside) {
    if (set > 0) pinned_[at(set, root) * k_ + part] += cost;
    if (outside) exchange(root, part, cost, gathers, keeps);
  }
  // Nets of that cost of a set have their root in a part; `support` counts the set's vertices.
  void root(std::int32_t set, std::int32_t part, std::int64_t cost, const std::int32_t* support);
  // A part holds a vertex of the set from now on (or, sign -1, no longer).
  void support(std::int32_t set, std::int32_t part, int sign);

 private:
  std::size_t at(std::int32_t set, std::int32_t part) const {
    return static_cast<std::size_t>(set) * k_ + part;
  }
  void exchange(std::int32_t root, std::int32_t part, std::int64_t cost, bool gathers, bool keeps);

  const std::int32_t k_;
  const bool by_links_;  // `exchanged_` is
  const Span<std::int64_t> links_;
  Budget& memory_;
  std::vector<char> gathers_;  // of each set
  std::vector<std::int64_t> rooted_, pinned_;  // R and P
  std::vector<std::int64_t> exchanged_;        // of each part
  std::int64_t links_cost_ = 0;
};

}  // namespace hgpart
