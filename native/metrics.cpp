#include "metrics.hpp"

#include <algorithm>
#include <numeric>

#include "validation.hpp"

namespace hgpart {

namespace {

void check(const Hypergraph& hypergraph, const Partition& partition) {
  check_all_but_pins(hypergraph);
  check_partition(partition, hypergraph);
}

// The parts that take part in a net.
struct PartsOfNet {
  std::int32_t root;
  Span<std::int32_t> others;  // distinct, without the root's

  std::int64_t lambda() const { return 1 + others.size; }
};

// Finds the parts of one net after the other, checking its pins.
class PartsFinder {
 public:
  PartsFinder(const Hypergraph& hypergraph, const Partition& partition)
      : hypergraph_(hypergraph), parts_(partition.parts), fits_mask_(partition.k <= 64) {
    if (fits_mask_) {
      byte_parts_.assign(parts_.begin(), parts_.end());
    } else {
      last_search_.assign(partition.k, 0);
    }
  }

  // Valid until the next call.
  PartsOfNet operator()(std::int64_t net) {
    const Span<std::int32_t> pins = hypergraph_.pins_of(net);
    const Span<std::int32_t> readers = {pins.data + 1, pins.size - 1};
    // All maps of a dense layer have the same readers, found and checked for the first of them.
    const bool readers_known = std::equal(readers.begin(), readers.end(), last_readers_.begin(),
                                          last_readers_.end());
    check_pins(hypergraph_, hypergraph_.pointers[net], readers_known ? 1 : pins.size);
    if (!readers_known) search(readers);
    last_readers_ = readers;

    const std::int32_t root = parts_[pins[0]];
    const auto own = std::find(found_.begin(), found_.end(), root);
    if (own != found_.end()) std::iter_swap(own, found_.end() - 1);
    const std::int64_t others = static_cast<std::int64_t>(found_.size()) - (own != found_.end());
    return {root, {found_.data(), others}};
  }

 private:
  void search(Span<std::int32_t> pins) {
    found_.clear();
    if (fits_mask_) {
      std::uint64_t mask = 0;
      for (const std::int32_t pin : pins) mask |= std::uint64_t{1} << byte_parts_[pin];
      for (; mask != 0; mask &= mask - 1) found_.push_back(__builtin_ctzll(mask));
      return;
    }
    ++searches_;
    for (const std::int32_t pin : pins) {
      const std::int32_t part = parts_[pin];
      if (last_search_[part] == searches_) continue;
      last_search_[part] = searches_;
      found_.push_back(part);
    }
  }

  const Hypergraph hypergraph_;
  const Span<std::int32_t> parts_;
  const bool fits_mask_;
  std::vector<std::uint8_t> byte_parts_;   // where they fit: more of them stay in the cache
  std::vector<std::int64_t> last_search_;  // that found each part, where no mask can tell
  std::int64_t searches_ = 0;
  std::vector<std::int32_t> found_;
  Span<std::int32_t> last_readers_ = {nullptr, 0};
};

// Calls visit(sender, receiver) for each part that sends to, or receives from, the root's.
template <typename Visit>
void for_each_transfer(const PartsOfNet& parts, bool gathers, Visit visit) {
  for (const std::int64_t other : parts.others) {
    if (gathers) {
      visit(other, parts.root);
    } else {
      visit(parts.root, other);
    }
  }
}

std::vector<std::int64_t> nets_by_layer(const Hypergraph& hypergraph) {
  std::vector<std::int64_t> nets(hypergraph.nets());
  std::iota(nets.begin(), nets.end(), 0);
  std::stable_sort(nets.begin(), nets.end(), [&](std::int64_t left, std::int64_t right) {
    return hypergraph.net_layers[left] < hypergraph.net_layers[right];
  });
  return nets;
}

}  // namespace

std::int64_t communication_volume(const Hypergraph& hypergraph, const Partition& partition) {
  check(hypergraph, partition);
  std::int64_t volume = 0;
  PartsFinder parts_of_net(hypergraph, partition);
  for (std::int64_t net = 0; net < hypergraph.nets(); ++net) {
    const std::int64_t lambda = parts_of_net(net).lambda();
    const char* what = "communication volume";
    add_checked(volume, multiply_checked(hypergraph.costs[net], lambda - 1, what), what);
  }
  return volume;
}

std::int64_t cut_net(const Hypergraph& hypergraph, const Partition& partition) {
  check(hypergraph, partition);
  std::int64_t cut = 0;
  PartsFinder parts_of_net(hypergraph, partition);
  for (std::int64_t net = 0; net < hypergraph.nets(); ++net) {
    if (parts_of_net(net).lambda() > 1) add_checked(cut, hypergraph.costs[net], "cost of the cut nets");
  }
  return cut;
}

std::vector<std::int64_t> part_loads(const Hypergraph& hypergraph, const Partition& partition) {
  check(hypergraph, partition);
  check_pins(hypergraph, 0, hypergraph.pins.size);
  std::vector<std::int64_t> loads(partition.k, 0);
  std::int64_t total = 0;  // no load is above it, so only it can overflow
  for (std::int64_t vertex = 0; vertex < hypergraph.vertices(); ++vertex) {
    add_checked(total, hypergraph.weights[vertex], "total weight");
    loads[partition.parts[vertex]] += hypergraph.weights[vertex];
  }
  return loads;
}

std::vector<std::int64_t> traffic(const Hypergraph& hypergraph, const Partition& partition) {
  check_table_fits(partition.k);
  check(hypergraph, partition);
  const std::int64_t k = partition.k;
  std::vector<std::int64_t> bytes(k * k, 0);
  std::int64_t total = 0;  // no entry is above it, so only it can overflow
  PartsFinder parts_of_net(hypergraph, partition);
  for (std::int64_t net = 0; net < hypergraph.nets(); ++net) {
    const std::int64_t cost = hypergraph.costs[net];
    for_each_transfer(parts_of_net(net), hypergraph.gathers[net],
                      [&](std::int64_t sender, std::int64_t receiver) {
                        add_checked(total, cost, "communication volume");
                        bytes[sender * k + receiver] += cost;
                      });
  }
  return bytes;
}

std::vector<std::int64_t> messages(const Hypergraph& hypergraph, const Partition& partition) {
  check_table_fits(partition.k);
  check(hypergraph, partition);
  const std::int64_t k = partition.k;
  std::vector<std::int64_t> counts(k * k, 0);
  std::vector<std::int32_t> last_layer(k * k, -1);  // for which each pair was counted
  PartsFinder parts_of_net(hypergraph, partition);
  for (const std::int64_t net : nets_by_layer(hypergraph)) {
    if (hypergraph.costs[net] == 0) continue;
    const std::int32_t layer = hypergraph.net_layers[net];
    for_each_transfer(parts_of_net(net), hypergraph.gathers[net],
                      [&](std::int64_t sender, std::int64_t receiver) {
                        const std::int64_t pair = sender * k + receiver;
                        if (last_layer[pair] == layer) return;
                        last_layer[pair] = layer;
                        ++counts[pair];
                      });
  }
  return counts;
}

}  // namespace hgpart
