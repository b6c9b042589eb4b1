#include "validation.hpp"

#include <string>

namespace hgpart {

namespace {

// They bound what a mistaken k allocates: 128 MiB of marks, 2 GiB of table.
constexpr std::int64_t kMaxParts = 1 << 24;
constexpr std::int64_t kMaxTableParts = 1 << 14;

void check_k(std::int64_t k) {
  if (k < 1 || k > kMaxParts) fail("k", k, "1 to " + std::to_string(kMaxParts));
}

}  // namespace

void check_all_but_pins(const Hypergraph& hypergraph) {
  check_not_negative("weights", hypergraph.weights);
  check_not_negative("costs", hypergraph.costs);
  check_length("pointers", hypergraph.pointers.size, hypergraph.nets() + 1, "one more than costs");
  check_pointers("pointers", hypergraph.pointers, kEachNetHasARoot, hypergraph.pins.size,
                 "the number of pins");
  check_length("gathers", hypergraph.gathers.size, hypergraph.nets(), "one per net");
  check_length("net_layers", hypergraph.net_layers.size, hypergraph.nets(), "one per net");
  check_not_negative("net_layers", hypergraph.net_layers);
}

void check_pins(const Hypergraph& hypergraph, std::int64_t first, std::int64_t count) {
  check_below("pins", {hypergraph.pins.data + first, count}, hypergraph.vertices(), first);
}

void check_partition(const Partition& partition, const Hypergraph& hypergraph) {
  check_k(partition.k);
  check_length("parts", partition.parts.size, hypergraph.vertices(), "one per vertex");
  check_below("parts", partition.parts, partition.k);
}

void check_capacities(Span<std::int64_t> capacities) {
  check_k(capacities.size);
  check_not_negative("capacities", capacities);
}

void check_table_fits(std::int64_t k) {
  if (k > kMaxTableParts) {
    fail("k", k, "at most " + std::to_string(kMaxTableParts) + " for a k x k table");
  }
}

}  // namespace hgpart
