#include "list_schedule.hpp"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include "array_checks.hpp"

namespace hgpart {
namespace {

struct Event {
  double when;
  std::int64_t action;
  bool ends;  // or is ready

  bool operator>(const Event& other) const { return when > other.when; }
};

// What runs first is the smallest: class, micro-batch, chunk, action.
using Ready = std::tuple<std::int32_t, std::int64_t, std::int32_t, std::int64_t>;

template <typename T>
using LeastFirst = std::priority_queue<T, std::vector<T>, std::greater<T>>;

class ListSchedule {
 public:
  ListSchedule(const ActionGraph& graph, std::int64_t micro_batches)
      : graph_(graph),
        actions_(graph.parts.size),
        batches_(micro_batches),
        missing_(actions_ * batches_, 0),
        arrival_(actions_ * batches_, 0.0),
        waiting_(graph.alive.size),
        begun_(graph.alive.size, 0),
        ended_(graph.alive.size, 0),
        works_(graph.alive.size, false),
        left_(graph.alive.size * batches_, 0) {
    for (std::int64_t batch = 0; batch < batches_; ++batch) {
      for (const std::int32_t follower : graph.followers) ++missing_[batch * actions_ + follower];
      for (std::int64_t action = 0; action < actions_; ++action) {
        if (batch > 0) ++missing_[batch * actions_ + action];
        ++left_[graph.parts[action] * batches_ + batch];
      }
    }
  }

  std::vector<std::int64_t> run() {
    for (std::int64_t action = 0; action < actions_ * batches_; ++action) {
      if (missing_[action] == 0) events_.push({0.0, action, false});
    }
    std::vector<std::int32_t> touched;
    while (!events_.empty()) {
      const double now = events_.top().when;
      touched.clear();
      while (!events_.empty() && events_.top().when == now) {
        const Event event = events_.top();
        events_.pop();
        const std::int32_t part = part_of(event.action);
        touched.push_back(part);
        if (event.ends) {
          end(event.action, now);
        } else {
          const std::int64_t action = event.action % actions_;
          waiting_[part].push({graph_.classes[action], event.action / actions_,
                               graph_.chunks[action], event.action});
        }
      }
      for (const std::int32_t part : touched) begin(part, now);
    }
    return order_;
  }

 private:
  std::int32_t part_of(std::int64_t action) const { return graph_.parts[action % actions_]; }

  void begin(std::int32_t part, double now) {
    auto& waiting = waiting_[part];
    std::vector<Ready> held;
    while (!waiting.empty() && !works_[part]) {
      const Ready ready = waiting.top();
      waiting.pop();
      const std::int64_t action = std::get<3>(ready);
      const bool first = graph_.begins[action % actions_];
      if (first && begun_[part] - ended_[part] >= graph_.alive[part]) {
        held.push_back(ready);
        continue;
      }
      begun_[part] += first;
      works_[part] = true;
      order_.push_back(action);
      events_.push({now + graph_.seconds[action % actions_], action, true});
    }
    for (const Ready& ready : held) waiting.push(ready);
  }

  void end(std::int64_t number, double now) {
    const std::int64_t action = number % actions_, batch = number / actions_;
    const std::int32_t part = graph_.parts[action];
    works_[part] = false;
    ended_[part] += --left_[part * batches_ + batch] == 0;
    for (auto at = graph_.pointers[action]; at < graph_.pointers[action + 1]; ++at) {
      arrive(batch * actions_ + graph_.followers[at], now + graph_.travels[at]);
    }
    if (batch + 1 < batches_) arrive(number + actions_, now);
  }

  void arrive(std::int64_t number, double when) {
    arrival_[number] = std::max(arrival_[number], when);
    if (--missing_[number] == 0) events_.push({arrival_[number], number, false});
  }

  const ActionGraph graph_;
  const std::int64_t actions_, batches_;
  std::vector<std::int32_t> missing_;
  std::vector<double> arrival_;
  std::vector<LeastFirst<Ready>> waiting_;  // of each part
  std::vector<std::int64_t> begun_, ended_;
  std::vector<bool> works_;
  std::vector<std::int64_t> left_;  // by part and micro-batch, actions to do
  LeastFirst<Event> events_;
  std::vector<std::int64_t> order_;
};

void check(const ActionGraph& graph) {
  const std::int64_t actions = graph.parts.size;
  check_below("parts", graph.parts, graph.alive.size);
  check_length("seconds", graph.seconds.size, actions, "one per action");
  check_length("classes", graph.classes.size, actions, "one per action");
  check_length("chunks", graph.chunks.size, actions, "one per action");
  check_length("begins", graph.begins.size, actions, "one per action");
  check_length("pointers", graph.pointers.size, actions + 1, "one more than actions");
  check_pointers("pointers", graph.pointers, nullptr, graph.followers.size, "followers");
  check_below("followers", graph.followers, actions);
  check_length("travels", graph.travels.size, graph.followers.size, "one per follower");
}

}  // namespace

ListedActions list_schedule(const ActionGraph& graph, std::int64_t micro_batches) {
  check(graph);
  ListedActions listed{ListSchedule(graph, micro_batches).run(), {}};
  const std::int64_t actions = graph.parts.size;
  std::vector<double> arrival(actions * micro_batches, 0.0), free(graph.alive.size, 0.0);
  for (const std::int64_t number : listed.order) {
    const std::int64_t action = number % actions, first = number - action;
    double& until = free[graph.parts[action]];
    arrival[number] = std::max(arrival[number], until);
    until = arrival[number] + graph.seconds[action];
    for (auto at = graph.pointers[action]; at < graph.pointers[action + 1]; ++at) {
      double& follower = arrival[first + graph.followers[at]];
      follower = std::max(follower, until + graph.travels[at]);
    }
  }
  listed.begins = std::move(arrival);
  return listed;
}

}  // namespace hgpart
