// Several annealings at once, on threads; what they find does not depend on the number of threads.
#pragma once

#include <functional>
#include <vector>

#include "annealing.hpp"

namespace hgpart {

// Anneals each start with its options. `go_on` is asked by the calling thread every few
// milliseconds, with the share of all steps that is done; when it says no, all return the best that
// they have found so far.
std::vector<AnnealingResult> anneal_all(const SymmetricModel& model, const Goal& goal,
                                        const std::vector<Rows>& starts,
                                        const std::vector<AnnealingOptions>& options, int threads,
                                        const std::function<bool(double)>& go_on);

}  // namespace hgpart
