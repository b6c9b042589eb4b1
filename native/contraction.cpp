#include "contraction.hpp"

#include <unordered_map>
#include <utility>

#include "validation.hpp"

namespace hgpart {

namespace {

// Spreads an integer over 64 bits (the finalizer of SplitMix64: Steele, Lea and Flood, 2014).
std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

class Contraction {
 public:
  Contraction(const Hypergraph& hypergraph, Span<std::int32_t> clusters, std::int64_t count)
      : hypergraph_(hypergraph), clusters_(clusters), last_net_(count, -1) {
    result_.weights.assign(count, 0);
    result_.pointers.assign(1, 0);
  }

  ContractedHypergraph run() {
    std::int64_t total = 0;  // no cluster is above it, so only it can overflow
    for (std::int64_t vertex = 0; vertex < hypergraph_.vertices(); ++vertex) {
      add_checked(total, hypergraph_.weights[vertex], "total weight");
      result_.weights[clusters_[vertex]] += hypergraph_.weights[vertex];
    }
    for (std::int64_t net = 0; net < hypergraph_.nets(); ++net) add_net(net);
    return std::move(result_);
  }

 private:
  void add_net(std::int64_t net) {
    const std::uint64_t pins_hash = append_clusters_of(net);
    const std::int64_t begin = result_.pointers.back();
    const std::int64_t end = static_cast<std::int64_t>(result_.pins.size());
    const bool within_one_cluster = end - begin == 1;
    if (within_one_cluster || merge(net, pins_hash)) {
      result_.pins.resize(begin);
      return;
    }
    result_.pointers.push_back(end);
    result_.costs.push_back(hypergraph_.costs[net]);
    result_.gathers.push_back(hypergraph_.gathers[net]);
    result_.net_layers.push_back(hypergraph_.net_layers[net]);
  }

  // Appends the distinct clusters among the net's pins. Returns a hash that does not depend on
  // their order, but for the root.
  std::uint64_t append_clusters_of(std::int64_t net) {
    const Span<std::int32_t> pins = hypergraph_.pins_of(net);
    std::uint64_t hash = mix(mix(clusters_[pins[0]]));
    for (const std::int32_t pin : pins) {
      const std::int32_t cluster = clusters_[pin];
      if (last_net_[cluster] == net) continue;
      last_net_[cluster] = net;
      result_.pins.push_back(cluster);
      hash += mix(cluster);
    }
    return hash;
  }

  // Adds the net's cost to the equal net that came before it, or remembers it as the first.
  bool merge(std::int64_t net, std::uint64_t pins_hash) {
    const auto [first, last] = nets_by_hash_.equal_range(pins_hash);
    for (auto entry = first; entry != last; ++entry) {
      const std::int64_t earlier = entry->second;
      if (equals(net, earlier)) {
        add_checked(result_.costs[earlier], hypergraph_.costs[net], "cost of merged nets");
        return true;
      }
    }
    nets_by_hash_.emplace(pins_hash, static_cast<std::int64_t>(result_.costs.size()));
    return false;
  }

  // Compares `net`, whose clusters were appended last, with the result's net `earlier`.
  bool equals(std::int64_t net, std::int64_t earlier) const {
    const std::int64_t begin = result_.pointers[earlier];
    const std::int64_t end = result_.pointers[earlier + 1];
    const std::int64_t net_begin = result_.pointers.back();
    const std::int64_t net_end = static_cast<std::int64_t>(result_.pins.size());
    if (static_cast<bool>(result_.gathers[earlier]) != hypergraph_.gathers[net] ||
        result_.net_layers[earlier] != hypergraph_.net_layers[net] ||
        end - begin != net_end - net_begin || result_.pins[begin] != result_.pins[net_begin]) {
      return false;
    }
    for (std::int64_t index = begin; index < end; ++index) {
      if (last_net_[result_.pins[index]] != net) return false;
    }
    return true;
  }

  const Hypergraph hypergraph_;
  const Span<std::int32_t> clusters_;
  std::vector<std::int64_t> last_net_;  // in which each cluster was found
  std::unordered_multimap<std::uint64_t, std::int64_t> nets_by_hash_;  // nets of the result
  ContractedHypergraph result_;
};

}  // namespace

ContractedHypergraph contract(const Hypergraph& hypergraph, Span<std::int32_t> clusters,
                              std::int64_t count) {
  check_all_but_pins(hypergraph);
  check_pins(hypergraph, 0, hypergraph.pins.size);
  check_clusters(clusters, count, hypergraph);
  return Contraction(hypergraph, clusters, count).run();
}

}  // namespace hgpart
