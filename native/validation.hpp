// Checks at the door: what passes them is never read out of bounds, and no 64-bit sum wraps.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "hypergraph.hpp"

namespace hgpart {

// Its message is one line: what was received, and what would be accepted.
class InvalidHypergraph : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// The pins are many, and reading them takes longer than all else: who reads them checks them on
// the way, net by net.
void check_all_but_pins(const Hypergraph& hypergraph);
void check_pins(const Hypergraph& hypergraph, std::int64_t first, std::int64_t count);

void check_partition(const Partition& partition, const Hypergraph& hypergraph);

// For results with an entry for each pair of parts.
void check_table_fits(std::int64_t k);

[[noreturn]] void fail_overflow(const char* what);

inline void add_checked(std::int64_t& sum, std::int64_t addend, const char* what) {
  if (__builtin_add_overflow(sum, addend, &sum)) fail_overflow(what);
}

inline std::int64_t multiply_checked(std::int64_t left, std::int64_t right, const char* what) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(left, right, &product)) fail_overflow(what);
  return product;
}

}  // namespace hgpart
