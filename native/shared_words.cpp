#include "shared_words.hpp"

#include <algorithm>
#include <thread>

namespace hgpart {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// A message is most often there, or comes within this time; the other process may need this core.
constexpr microseconds kSpins{200};
constexpr microseconds kShortestNap{20};
constexpr microseconds kLongestNap{2000};
constexpr int kNapsInWait = 32;  // a nap is so short beside the wait that it hardly prolongs it
constexpr int kLooks = 64;  // between two looks at the clock

std::int64_t read(const std::int64_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void publish(std::int64_t& word, std::int64_t number) {
  __atomic_store_n(&word, number, __ATOMIC_RELEASE);
}

bool wait_for(const std::int64_t& word, std::int64_t number, const std::int64_t& closed,
              microseconds longest) {
  const auto begin = Clock::now();
  while (true) {
    for (int look = 0; look < kLooks; ++look) {
      if (read(word) >= number) return true;
      pause();
    }
    const auto waited = std::chrono::duration_cast<microseconds>(Clock::now() - begin);
    if (waited >= longest || read(closed) != 0) return read(word) >= number;
    if (waited >= kSpins) {
      std::this_thread::sleep_for(std::clamp(waited / kNapsInWait, kShortestNap, kLongestNap));
    }
  }
}

}  // namespace hgpart
