#include "array_checks.hpp"

#include <algorithm>

namespace hgpart {

namespace {

template <typename T>
void check_each_not_negative(const std::string& name, Span<T> values) {
  for (std::int64_t index = 0; index < values.size; ++index) {
    if (values[index] < 0) fail(name, index, values[index], "0 or more");
  }
}

}  // namespace

void fail(const std::string& name, std::int64_t value, const std::string& expected) {
  throw InvalidHypergraph(name + " is " + std::to_string(value) + ", expected " + expected);
}

void fail(const std::string& name, std::int64_t index, std::int64_t value,
          const std::string& expected) {
  fail(name + "[" + std::to_string(index) + "]", value, expected);
}

void fail_overflow(const char* what) {
  throw InvalidHypergraph(std::string(what) +
                          " is more than 9223372036854775807, the most that 64 bits hold");
}

void check_length(const std::string& name, std::int64_t length, std::int64_t expected,
                  const char* per) {
  if (length != expected) {
    throw InvalidHypergraph(name + " has length " + std::to_string(length) + ", expected " +
                            std::to_string(expected) + ", " + per);
  }
}

void check_not_negative(const std::string& name, Span<std::int64_t> values) {
  check_each_not_negative(name, values);
}

void check_not_negative(const std::string& name, Span<std::int32_t> values) {
  check_each_not_negative(name, values);
}

void check_pointers(const std::string& name, Span<std::int64_t> pointers, const char* each,
                    std::int64_t total, const char* total_name) {
  if (pointers[0] != 0) fail(name, 0, pointers[0], "0");
  for (std::int64_t at = 1; at < pointers.size; ++at) {
    const std::int64_t before = pointers[at - 1];
    if (each != nullptr && pointers[at] <= before) {
      fail(name, at, pointers[at], "more than " + std::to_string(before) + ": " + each);
    }
    if (pointers[at] < before) fail(name, at, pointers[at], std::to_string(before) + " or more");
  }
  const std::int64_t last = pointers.size - 1;
  if (pointers[last] != total) {
    fail(name, last, pointers[last], std::to_string(total) + ", " + total_name);
  }
}

void check_below(const std::string& name, Span<std::int32_t> values, std::int64_t bound,
                 std::int64_t offset) {
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
  fail(name, offset + (culprit - values.begin()), *culprit,
       "0 or more and less than " + std::to_string(bound));
}

}  // namespace hgpart
