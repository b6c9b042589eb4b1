#include "portfolio.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "annealing_checks.hpp"
#include "array_checks.hpp"

namespace hgpart {

void run_all(std::size_t count, std::int64_t all_steps, int threads,
             const std::function<void(std::size_t, const std::function<bool(std::int64_t)>&)>& run,
             const std::function<bool(double)>& go_on) {
  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> steps{0};
  std::atomic<std::size_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  std::condition_variable one_is_done;
  std::size_t workers = std::min<std::size_t>(std::max(1, threads), count);
  std::size_t working = workers;

  const auto work = [&] {
    try {
      for (auto at = next++; at < count; at = next++) {
        run(at, [&](std::int64_t more) {
          steps += more;
          return !stop;
        });
      }
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      error = std::current_exception();
    }
    const std::lock_guard<std::mutex> lock(mutex);
    --working;
    one_is_done.notify_one();
  };
  std::vector<std::thread> pool;
  for (std::size_t i = 0; i < workers; ++i) pool.emplace_back(work);
  {
    std::unique_lock<std::mutex> lock(mutex);
    while (working > 0) {
      one_is_done.wait_for(lock, std::chrono::milliseconds(20));
      lock.unlock();
      const double done = static_cast<double>(steps) / (static_cast<double>(all_steps) + 1.0);
      if (!stop && !go_on(std::min(1.0, done))) stop = true;
      lock.lock();
    }
  }
  for (auto& thread : pool) thread.join();
  if (error) std::rethrow_exception(error);
}

std::vector<AnnealingResult> anneal_all(const SymmetricModel& model, const Goal& goal,
                                        const std::vector<Rows>& starts,
                                        const std::vector<AnnealingOptions>& options, int threads,
                                        const std::function<bool(double)>& go_on) {
  check_model(model);
  check_goal(goal, model);
  for (std::size_t at = 0; at < starts.size(); ++at) {
    check_chain(model, goal, starts[at], options[at], at);
  }
  std::vector<AnnealingResult> results(starts.size());
  std::int64_t all_steps = 0;
  for (const auto& own : options) add_checked(all_steps, own.steps, "number of steps");
  run_all(
      starts.size(), all_steps, threads,
      [&](std::size_t at, const std::function<bool(std::int64_t)>& ask) {
        results[at] = anneal(model, goal, starts[at], options[at], ask);
      },
      go_on);
  return results;
}

}  // namespace hgpart
