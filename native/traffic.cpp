#include "traffic.hpp"

#include <algorithm>
#include <utility>

namespace hgpart {

Traffic::Traffic(const Goal& goal, std::vector<char> gathers, Budget& memory)
    : k_(static_cast<std::int32_t>(goal.capacities.size)),
      by_links_(goal.objective == Objective::kTime),
      links_(goal.links),
      memory_(memory),
      gathers_(std::move(gathers)),
      rooted_(gathers_.size() * k_, 0),
      pinned_(gathers_.size() * k_ * k_, 0),
      exchanged_(k_, 0) {}

std::int64_t Traffic::largest() const {
  return *std::max_element(exchanged_.begin(), exchanged_.end());
}

double Traffic::smooth_largest() const {
  return hgpart::smooth_largest(
      k_, [this](std::int32_t part) { return static_cast<double>(exchanged_[part]); });
}

void Traffic::exchange(std::int32_t root, std::int32_t part, std::int64_t cost, bool gathers,
                       bool keeps) {
  if (root == part) return;
  const auto from = gathers ? part : root, to = gathers ? root : part;
  const auto dear = links_.size > 0 ? links_[static_cast<std::size_t>(from) * k_ + to] * cost : 0;
  links_cost_ += dear;
  exchanged_[from] += by_links_ ? dear : cost;
  exchanged_[to] += by_links_ ? dear : cost;
  if (keeps && memory_.limited()) memory_.add(to, cost);
}

void Traffic::root(std::int32_t set, std::int32_t part, std::int64_t cost,
                   const std::int32_t* support) {
  if (set == 0) return;
  rooted_[at(set, part)] += cost;
  for (std::int32_t other = 0; other < k_; ++other) {
    if (support[other] > 0) exchange(part, other, cost, gathers_[set], true);
  }
}

void Traffic::support(std::int32_t set, std::int32_t part, int sign) {
  for (std::int32_t root = 0; root < k_; ++root) {
    const auto cost = rooted_[at(set, root)] - pinned_[at(set, root) * k_ + part];
    if (cost != 0) exchange(root, part, sign * cost, gathers_[set], true);
  }
}

}  // namespace hgpart
