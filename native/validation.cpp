#include "validation.hpp"

#include <algorithm>
#include <string>

namespace hgpart {

namespace {

// They bound what a mistaken k allocates: 128 MiB of marks, 2 GiB of table.
constexpr std::int64_t kMaxParts = 1 << 24;
constexpr std::int64_t kMaxTableParts = 1 << 14;

std::string entry(const char* name, std::int64_t index, std::int64_t value) {
  return std::string(name) + "[" + std::to_string(index) + "] is " + std::to_string(value);
}

void check_length(const char* name, std::int64_t length, std::int64_t expected, const char* per) {
  if (length != expected) {
    throw InvalidHypergraph(std::string(name) + " has length " + std::to_string(length) +
                            ", expected " + std::to_string(expected) + ", " + per);
  }
}

template <typename T>
void check_not_negative(const char* name, Span<T> values) {
  for (std::int64_t index = 0; index < values.size; ++index) {
    if (values[index] < 0) {
      throw InvalidHypergraph(entry(name, index, values[index]) + ", expected 0 or more");
    }
  }
}

// `offset` is the index of the first of the values.
void check_below(const char* name, Span<std::int32_t> values, std::int64_t bound,
                 std::int64_t offset = 0) {
  // Without an exit the loop is vectorised; as unsigned, a negative value is a large one.
  const auto limit = static_cast<std::uint32_t>(std::min<std::int64_t>(bound, 1u << 31));
  bool all_below = true;
  for (const std::int32_t value : values) {
    all_below &= static_cast<std::uint32_t>(value) < limit;
  }
  if (all_below) return;
  const std::int32_t* culprit =
      std::find_if(values.begin(), values.end(),
                   [=](std::int32_t value) { return value < 0 || value >= bound; });
  throw InvalidHypergraph(entry(name, offset + (culprit - values.begin()), *culprit) +
                          ", expected 0 or more and less than " + std::to_string(bound));
}

void check_pointers(const Hypergraph& hypergraph) {
  const Span<std::int64_t>& pointers = hypergraph.pointers;
  const std::int64_t nets = hypergraph.nets();
  check_length("pointers", pointers.size, nets + 1, "one more than costs");
  if (pointers[0] != 0) {
    throw InvalidHypergraph(entry("pointers", 0, pointers[0]) + ", expected 0");
  }
  for (std::int64_t net = 0; net < nets; ++net) {
    if (pointers[net + 1] <= pointers[net]) {
      throw InvalidHypergraph(entry("pointers", net + 1, pointers[net + 1]) +
                              ", expected more than " + std::to_string(pointers[net]) +
                              ": each net has at least a root");
    }
  }
  if (pointers[nets] != hypergraph.pins.size) {
    throw InvalidHypergraph(entry("pointers", nets, pointers[nets]) + ", expected " +
                            std::to_string(hypergraph.pins.size) + ", the number of pins");
  }
}

}  // namespace

void check_all_but_pins(const Hypergraph& hypergraph) {
  check_not_negative("weights", hypergraph.weights);
  check_not_negative("costs", hypergraph.costs);
  check_pointers(hypergraph);
  check_length("gathers", hypergraph.gathers.size, hypergraph.nets(), "one per net");
  check_length("net_layers", hypergraph.net_layers.size, hypergraph.nets(), "one per net");
  check_not_negative("net_layers", hypergraph.net_layers);
}

void check_pins(const Hypergraph& hypergraph, std::int64_t first, std::int64_t count) {
  check_below("pins", {hypergraph.pins.data + first, count}, hypergraph.vertices(), first);
}

void check_partition(const Partition& partition, const Hypergraph& hypergraph) {
  if (partition.k < 1 || partition.k > kMaxParts) {
    throw InvalidHypergraph("k is " + std::to_string(partition.k) + ", expected 1 to " +
                            std::to_string(kMaxParts));
  }
  check_length("parts", partition.parts.size, hypergraph.vertices(), "one per vertex");
  check_below("parts", partition.parts, partition.k);
}

void check_table_fits(std::int64_t k) {
  if (k > kMaxTableParts) {
    throw InvalidHypergraph("k is " + std::to_string(k) + ", expected at most " +
                            std::to_string(kMaxTableParts) + " for a k x k table");
  }
}

void fail_overflow(const char* what) {
  throw InvalidHypergraph(std::string(what) +
                          " is more than 9223372036854775807, the most that 64 bits hold");
}

}  // namespace hgpart
