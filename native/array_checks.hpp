// What the checks at the door are made of: lengths, values, and sums in 64 bits.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "hypergraph.hpp"

namespace hgpart {

// Its message is one line: what was received, and what would be accepted.
class InvalidHypergraph : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// "NAME is VALUE, expected EXPECTED", and "NAME[INDEX] is ..." for an entry.
[[noreturn]] void fail(const std::string& name, std::int64_t value, const std::string& expected);
[[noreturn]] void fail(const std::string& name, std::int64_t index, std::int64_t value,
                       const std::string& expected);
[[noreturn]] void fail_overflow(const char* what);

// `per` says what there is one of for each entry.
void check_length(const std::string& name, std::int64_t length, std::int64_t expected,
                  const char* per);
void check_not_negative(const std::string& name, Span<std::int64_t> values);
void check_not_negative(const std::string& name, Span<std::int32_t> values);

// Of CSR arrays: from 0 to `total`, ascending. `each` says why there is at least one of each, if so.
constexpr const char* kEachNetHasARoot = "each net has at least a root";
void check_pointers(const std::string& name, Span<std::int64_t> pointers, const char* each,
                    std::int64_t total, const char* total_name);

// From 0 to `bound` - 1. `offset` is the index of the first of the values.
void check_below(const std::string& name, Span<std::int32_t> values, std::int64_t bound,
                 std::int64_t offset = 0);

inline void add_checked(std::int64_t& sum, std::int64_t addend, const char* what) {
  if (__builtin_add_overflow(sum, addend, &sum)) fail_overflow(what);
}

inline std::int64_t multiply_checked(std::int64_t left, std::int64_t right, const char* what) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(left, right, &product)) fail_overflow(what);
  return product;
}

}  // namespace hgpart
