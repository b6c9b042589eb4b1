#include "traffic.hpp"

#include <algorithm>
#include <cmath>

namespace hgpart {

Traffic::Traffic(const Goal& goal, std::int64_t sets, Budget& memory)
    : k_(static_cast<std::int32_t>(goal.capacities.size)),
      links_(goal.links),
      memory_(memory),
      rooted_(sets * k_, 0),
      pinned_(static_cast<std::size_t>(sets) * k_ * k_, 0),
      exchanged_(k_, 0) {}

std::int64_t Traffic::largest() const {
  return *std::max_element(exchanged_.begin(), exchanged_.end());
}

double Traffic::smooth_largest() const {
  const auto most = static_cast<double>(largest());
  if (most <= 0) return 0;
  double sum = 0;
  for (const auto bytes : exchanged_) {
    const double share = static_cast<double>(bytes) / most;
    const double fourth = share * share * share * share;
    sum += fourth * fourth;
  }
  return most * std::pow(sum, 0.125);
}

void Traffic::exchange(std::int32_t root, std::int32_t part, std::int64_t cost, bool gathers,
                       bool keeps) {
  if (root == part) return;
  const auto from = gathers ? part : root, to = gathers ? root : part;
  exchanged_[from] += cost;
  exchanged_[to] += cost;
  if (links_.size > 0) links_cost_ += links_[static_cast<std::size_t>(from) * k_ + to] * cost;
  if (keeps && memory_.limited()) memory_.add(to, cost);
}

void Traffic::root(std::int32_t set, std::int32_t part, std::int64_t cost,
                   const std::int32_t* support) {
  if (set == 0) return;
  rooted_[at(set, part)] += cost;
  for (std::int32_t other = 0; other < k_; ++other) {
    if (support[other] > 0) exchange(part, other, cost, false, true);
  }
}

void Traffic::support(std::int32_t set, std::int32_t part, int sign) {
  for (std::int32_t root = 0; root < k_; ++root) {
    const auto cost = rooted_[at(set, root)] - pinned_[at(set, root) * k_ + part];
    if (cost != 0) exchange(root, part, sign * cost, false, true);
  }
}

}  // namespace hgpart
