// Several annealings at once, on threads; what they find does not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "annealing.hpp"

namespace hgpart {

// Runs each of `count` searches, which say now and then how many steps more are over, and ask
// whether to go on. `go_on` is asked by the calling thread every few milliseconds, with the share of
// all steps that is done; when it says no, all are told to end.
void run_all(std::size_t count, std::int64_t all_steps, int threads,
             const std::function<void(std::size_t, const std::function<bool(std::int64_t)>&)>& run,
             const std::function<bool(double)>& go_on);

// Anneals each start with its options. As `run_all`; where `go_on` says no, all return the best
// that they have found so far.
std::vector<AnnealingResult> anneal_all(const SymmetricModel& model, const Goal& goal,
                                        const std::vector<Rows>& starts,
                                        const std::vector<AnnealingOptions>& options, int threads,
                                        const std::function<bool(double)>& go_on);

}  // namespace hgpart
