// How much of something each part uses, and what all of them use above their limits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "hypergraph.hpp"

namespace hgpart {

class Budget {
 public:
  Budget(Span<std::int64_t> limits, std::int32_t parts) : limits_(limits), used_(parts, 0) {
    for (const auto limit : limits) total_ += static_cast<double>(limit);
  }

  bool limited() const { return limits_.size > 0; }
  std::int64_t excess() const { return excess_; }
  double total() const { return total_; }  // of the limits
  std::int64_t room(std::int32_t part) const { return limits_[part] - used_[part]; }

  void add(std::int32_t part, std::int64_t amount) {
    excess_ -= std::max<std::int64_t>(0, -room(part));
    used_[part] += amount;
    excess_ += std::max<std::int64_t>(0, -room(part));
  }

 private:
  const Span<std::int64_t> limits_;
  std::vector<std::int64_t> used_;
  std::int64_t excess_ = 0;
  double total_ = 0;
};

}  // namespace hgpart
