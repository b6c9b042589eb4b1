// Words in memory that several processes have: one writes a number, another waits for it.
#pragma once

#include <chrono>
#include <cstdint>

namespace hgpart {

// What was written into the memory before is seen by whoever sees the number.
void publish(std::int64_t& word, std::int64_t number);

// Wait until the word is at least the number; returns whether it is. The wait ends in vain after
// the longest time, or when `closed` is not 0.
bool wait_for(const std::int64_t& word, std::int64_t number, const std::int64_t& closed,
              std::chrono::microseconds longest);

}  // namespace hgpart
