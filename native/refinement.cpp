#include "refinement.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <string>

#include "validation.hpp"

namespace hgpart {

namespace {

constexpr int kMaxRounds = 20;
constexpr std::int64_t kStepsBetweenQuestions = 20'000'000;
constexpr std::int64_t kMaxCounts = std::int64_t{1} << 29;  // 2 GiB of int32

class Refinement {
 public:
  Refinement(const Hypergraph& hypergraph, std::vector<std::int32_t>& parts,
             Span<std::int64_t> capacities, Span<bool> may_lie,
             const std::function<bool()>& go_on)
      : hypergraph_(hypergraph),
        parts_(parts),
        capacities_(capacities),
        may_lie_(may_lie),
        go_on_(go_on),
        k_(capacities.size),
        loads_(k_, 0),
        members_(k_),
        place_(parts.size()),
        absent_(k_) {
    index_nets();
    for (std::size_t vertex = 0; vertex < parts_.size(); ++vertex) {
      const auto part = parts_[vertex];
      loads_[part] += hypergraph_.weights[vertex];
      place_[vertex] = members_[part].size();
      members_[part].push_back(static_cast<std::int32_t>(vertex));
    }
    counts_.assign(hypergraph_.nets() * k_, 0);
    for_each_pin([&](std::int64_t net, std::int32_t pin) { ++counts_[net * k_ + parts_[pin]]; });
  }

  void rebalance() {
    for (auto from = most_overloaded(); from >= 0 && !stopped_; from = most_overloaded()) {
      if (!hand_over(from) && !exchange(from)) return;
    }
  }

  // Returns whether anything moved.
  bool improve(std::uint64_t seed) {
    std::vector<std::int32_t> order(parts_.size());
    std::iota(order.begin(), order.end(), 0);
    std::mt19937_64 random(seed);
    bool moved = false;
    for (int round = 0; round < kMaxRounds; ++round) {
      // std::shuffle differs between standard libraries; results must not.
      for (std::size_t at = order.size(); at > 1; --at) std::swap(order[at - 1], order[random() % at]);
      bool changed = false;
      for (const auto vertex : order) {
        const Move move = best_move(vertex);
        if (stopped_) return moved;
        if (move.to < 0) continue;
        const auto weight = hypergraph_.weights[vertex];
        const bool evens = loads_[parts_[vertex]] > loads_[move.to] + weight && weight > 0;
        if (move.gain > 0 || (move.gain == 0 && evens)) {
          apply(vertex, move.to);
          changed = true;  // also where it only evens: that makes room for others
        }
      }
      if (!changed) break;
      moved = true;
    }
    return moved;
  }

  bool is_overloaded() const { return !stopped_ && most_overloaded() >= 0; }

 private:
  struct Move {
    std::int32_t to = -1;
    std::int64_t gain = std::numeric_limits<std::int64_t>::min();
  };

  // Visits the nets and their pins, one that a net names twice once.
  template <typename Visit>
  void for_each_pin(Visit visit) const {
    std::vector<std::int64_t> last_net(parts_.size(), -1);
    for (std::int64_t net = 0; net < hypergraph_.nets(); ++net) {
      for (const auto pin : hypergraph_.pins_of(net)) {
        if (last_net[pin] != net) visit(net, pin);
        last_net[pin] = net;
      }
    }
  }

  void index_nets() {
    first_net_.assign(parts_.size() + 1, 0);
    for_each_pin([&](std::int64_t, std::int32_t pin) { ++first_net_[pin + 1]; });
    std::partial_sum(first_net_.begin(), first_net_.end(), first_net_.begin());
    nets_.resize(first_net_.back());
    auto next = first_net_;
    for_each_pin([&](std::int64_t net, std::int32_t pin) { nets_[next[pin]++] = net; });
  }

  std::int64_t room(std::int64_t part) const { return capacities_[part] - loads_[part]; }

  bool may_lie(std::int64_t vertex, std::int64_t part) const {
    return may_lie_.size == 0 || may_lie_[vertex * k_ + part];
  }

  std::int64_t most_overloaded() const {
    std::int64_t worst = -1;
    for (std::int64_t part = 0; part < k_; ++part) {
      if (room(part) < 0 && (worst < 0 || room(part) < room(worst))) worst = part;
    }
    return worst;
  }

  // The move of a vertex into a part with room that lowers the volume most (or adds least to it);
  // of equal ones, into the part with the most room.
  Move best_move(std::int32_t vertex) {
    const auto from = parts_[vertex];
    // A step is about a nanosecond.
    steps_ += (first_net_[vertex + 1] - first_net_[vertex] + 1) * k_;
    if (steps_ > kStepsBetweenQuestions) {
      steps_ = 0;
      stopped_ = stopped_ || !go_on_();
    }
    std::fill(absent_.begin(), absent_.end(), 0);
    std::int64_t leaving = 0;  // saved, where the vertex is the net's last one in its part
    for (auto at = first_net_[vertex]; at < first_net_[vertex + 1]; ++at) {
      const auto net = nets_[at];
      const auto cost = hypergraph_.costs[net];
      const std::int32_t* counts = &counts_[net * k_];
      if (counts[from] == 1) leaving += cost;
      for (std::int64_t part = 0; part < k_; ++part) absent_[part] += counts[part] == 0 ? cost : 0;
    }
    Move best;
    for (std::int64_t part = 0; part < k_; ++part) {
      if (part == from || room(part) < hypergraph_.weights[vertex]) continue;
      if (!may_lie(vertex, part)) continue;
      const auto gain = leaving - absent_[part];
      if (gain > best.gain || (gain == best.gain && room(part) > room(best.to))) {
        best = {static_cast<std::int32_t>(part), gain};
      }
    }
    return best;
  }

  void apply(std::int32_t vertex, std::int32_t to) {
    const auto from = parts_[vertex];
    const auto weight = hypergraph_.weights[vertex];
    loads_[from] -= weight;
    loads_[to] += weight;
    auto& left = members_[from];
    place_[left.back()] = place_[vertex];
    left[place_[vertex]] = left.back();
    left.pop_back();
    place_[vertex] = members_[to].size();
    members_[to].push_back(vertex);
    parts_[vertex] = to;
    for (auto at = first_net_[vertex]; at < first_net_[vertex + 1]; ++at) {
      --counts_[nets_[at] * k_ + from];
      ++counts_[nets_[at] * k_ + to];
    }
  }

  // Moves the vertex that costs the least volume for each unit of overload that it takes away.
  bool hand_over(std::int64_t from) {
    const auto overload = -room(from);
    std::int32_t chosen = -1;
    Move move;
    double price = 0;
    for (const auto vertex : members_[from]) {
      const auto weight = hypergraph_.weights[vertex];
      if (weight == 0) continue;
      const Move candidate = best_move(vertex);
      if (stopped_) return false;
      if (candidate.to < 0) continue;
      const auto relief = static_cast<double>(std::min(weight, overload));
      const double candidate_price = -static_cast<double>(candidate.gain) / relief;
      if (chosen < 0 || candidate_price < price) {
        chosen = vertex;
        move = candidate;
        price = candidate_price;
      }
    }
    if (chosen < 0) return false;
    apply(chosen, move.to);
    return true;
  }

  // Swaps a vertex of `from` for a lighter one of a part that has room for the difference: the
  // swap that takes away the most overload.
  bool exchange(std::int64_t from) {
    const auto overload = -room(from);
    std::int64_t relief = 0;
    std::int32_t heavy = -1, light = -1;
    const bool limited = may_lie_.size > 0;
    auto out = limited ? std::vector<std::int32_t>{} : one_of_each_weight(from, from);
    for (std::int64_t to = 0; to < k_; ++to) {
      if (to == from || room(to) <= 0) continue;
      if (limited) out = one_of_each_weight(from, to);
      for (const auto other : one_of_each_weight(to, from)) {
        for (const auto vertex : out) {
          const auto difference = hypergraph_.weights[vertex] - hypergraph_.weights[other];
          if (difference <= 0 || difference > room(to)) continue;
          if (std::min(difference, overload) > relief) {
            relief = std::min(difference, overload);
            heavy = vertex;
            light = other;
          }
        }
      }
    }
    if (relief == 0) return false;
    const auto to = parts_[light];
    apply(light, static_cast<std::int32_t>(from));
    apply(heavy, to);
    return true;
  }

  // Of a part's vertices that may lie in another one.
  std::vector<std::int32_t> one_of_each_weight(std::int64_t part, std::int64_t other_part) const {
    auto members = members_[part];
    const auto stays = [&](std::int32_t own) { return !may_lie(own, other_part); };
    members.erase(std::remove_if(members.begin(), members.end(), stays), members.end());
    const auto weight = [&](std::int32_t vertex) { return hypergraph_.weights[vertex]; };
    std::sort(members.begin(), members.end(), [&](std::int32_t one, std::int32_t other) {
      return weight(one) != weight(other) ? weight(one) < weight(other) : one < other;
    });
    members.erase(std::unique(members.begin(), members.end(),
                              [&](std::int32_t one, std::int32_t other) {
                                return weight(one) == weight(other);
                              }),
                  members.end());
    return members;
  }

  const Hypergraph& hypergraph_;
  std::vector<std::int32_t>& parts_;
  const Span<std::int64_t> capacities_;
  const Span<bool> may_lie_;                        // by vertex and part; empty: anywhere
  const std::function<bool()>& go_on_;
  std::int64_t steps_ = 0;  // since go_on_ was asked
  bool stopped_ = false;
  const std::int64_t k_;
  std::vector<std::int64_t> loads_;
  std::vector<std::vector<std::int32_t>> members_;  // of each part
  std::vector<std::size_t> place_;                  // of each vertex among its part's members
  std::vector<std::int64_t> absent_;               // cost of a vertex's nets absent from each part
  std::vector<std::int64_t> first_net_, nets_;      // nets of each vertex (CSR)
  std::vector<std::int32_t> counts_;                // pins of each net in each part, k a net
};

}  // namespace

void refine(const Hypergraph& hypergraph, std::vector<std::int32_t>& parts,
            Span<std::int64_t> capacities, Span<bool> may_lie, std::uint64_t seed,
            const std::function<bool()>& go_on) {
  check_all_but_pins(hypergraph);
  check_pins(hypergraph, 0, hypergraph.pins.size);
  check_capacities(capacities);
  const Span<std::int32_t> given{parts.data(), static_cast<std::int64_t>(parts.size())};
  check_partition({given, capacities.size}, hypergraph);
  if (may_lie.size > 0) {
    check_length("may_lie", may_lie.size, hypergraph.vertices() * capacities.size,
                 "one per vertex and part, or none");
  }
  // No load is above the one, no gain above the other.
  std::int64_t weight = 0, cost = 0;
  for (const auto own : hypergraph.weights) add_checked(weight, own, "total weight");
  for (const auto own : hypergraph.costs) add_checked(cost, own, "total cost");
  if (hypergraph.nets() > kMaxCounts / capacities.size) {
    throw InvalidHypergraph("got " + std::to_string(hypergraph.nets()) + " nets and k = " +
                            std::to_string(capacities.size) +
                            ", expected nets * k of at most 2^29");
  }
  Refinement refinement(hypergraph, parts, capacities, may_lie, go_on);
  bool moved = false;
  do {  // what has moved may have made room for what did not fit
    refinement.rebalance();
    moved = refinement.improve(seed);
  } while (moved && refinement.is_overloaded());
}

}  // namespace hgpart
