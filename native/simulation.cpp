#include "simulation.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <queue>
#include <string>
#include <utility>

#include "array_checks.hpp"

namespace hgpart {
namespace {

constexpr double kLeast = 0.05;  // least rate at which a part computes, whatever it handles
constexpr std::int32_t kLanding = -1;  // the version of a message that has left

// Goes at a rate, and shows how much is done.
class Clock {
 public:
  explicit Clock(double now = 0.0) : at_(now) {}

  // The time at which it will show an amount.
  double when(double reading) const { return at_ + (reading - shown_) / rate_; }

  // Goes on at a rate; if it is the same, nothing is rounded.
  void go(double rate, double now) {
    if (rate == rate_) return;
    shown_ += (now - at_) * rate_;
    at_ = now;
    rate_ = rate;
  }

 private:
  double at_;
  double shown_ = 0.0;
  double rate_ = 1.0;
};

struct Event {
  double when;
  std::int64_t count;  // of two at the same time, the one that was pushed first comes first
  std::int32_t part;   // -1: it is of a message
  std::int64_t message;
  std::int32_t version;

  bool operator>(const Event& other) const {
    return when != other.when ? when > other.when : count > other.count;
  }
};

struct Part {
  Clock clock;
  std::int64_t next = 0;     // the job that it does now, or would like to, counted over all steps
  bool works = false;
  double due = 0.0;
  bool is_due = false;       // whether there is an event for the end of its job
  std::int32_t version = 0;  // of that event; events with other versions are out of date
  std::int64_t missing = 0;  // messages that it waits for
  double taken_in = 0.0;     // when what arrived last was taken in
  std::deque<std::int64_t> leaving;      // messages in the order in which they leave
  std::vector<std::int64_t> under_way;   // those on a link
  // The fraction of its computing that each message under way takes.
  std::vector<std::pair<std::int64_t, double>> handled;
};

class Simulation {
 public:
  Simulation(const TimedStep& step, const Sharing& sharing, std::int64_t steps)
      : step_(step),
        sharing_(sharing),
        steps_(steps),
        jobs_(step.seconds.size),
        messages_(step.senders.size),
        parts_(step.part_pointers.size - 1),
        awaited_(messages_ * steps, false),
        arrived_(messages_ * steps, false),
        versions_(messages_ * steps, 0),
        clocks_(messages_ * steps) {
    const std::vector<double> never_of_jobs(jobs_ * steps, -1.0), never(messages_ * steps, -1.0);
    spans_ = {never_of_jobs, never_of_jobs, never, never};
    std::int32_t nodes = 0;
    for (const std::int32_t node : sharing.nodes) nodes = std::max(nodes, node + 1);
    of_node_.resize(nodes);
    computing_.resize(nodes, 0);
    for (std::int64_t part = 0; part < sharing.nodes.size; ++part) {
      of_node_[sharing.nodes[part]].push_back(part);
    }
    for (const Span<double>& factors : {sharing.slowdown, sharing.memory_slowdown}) {
      for (const double factor : factors) slows_ = slows_ || factor > 1;
    }
  }

  Spans run() {
    for (std::int64_t part = 0; part < size(); ++part) next(part, 0.0);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      if (event.part >= 0) {
        if (event.version == parts_[event.part].version) end(event.part, event.when);
      } else if (event.version == kLanding) {
        arrive(event.message, event.when);
      } else if (event.version == versions_[event.message]) {
        leave(event.message, event.when);
      }
    }
    return std::move(spans_);
  }

 private:
  std::int64_t size() const { return static_cast<std::int64_t>(parts_.size()); }
  std::int64_t jobs_of(std::int64_t part) const {
    return step_.part_pointers[part + 1] - step_.part_pointers[part];
  }
  // The number of a part's present job in the step's arrays.
  std::int64_t job(std::int64_t part) const {
    return step_.part_pointers[part] + parts_[part].next % jobs_of(part);
  }
  // The number of its first message, and the place of the job in the spans.
  std::int64_t first_message(std::int64_t part) const {
    return parts_[part].next / jobs_of(part) * messages_;
  }
  std::int64_t place(std::int64_t part) const {
    return parts_[part].next / jobs_of(part) * jobs_ + job(part);
  }

  // -------------------------------------------------------------- computing

  // Lets a part begin its next job, or wait for the messages that this needs.
  void next(std::int64_t at, double now) {
    Part& part = parts_[at];
    if (part.next >= jobs_of(at) * steps_) return;
    const std::int64_t number = job(at), first = first_message(at);
    part.missing = 0;
    for (auto i = step_.await_pointers[number]; i < step_.await_pointers[number + 1]; ++i) {
      const std::int64_t message = first + step_.awaits[i];
      if (arrived_[message] || awaited_[message]) continue;
      awaited_[message] = true;
      ++part.missing;
    }
    if (part.missing == 0) begin(at, now);
  }

  void begin(std::int64_t at, double now) {
    Part& part = parts_[at];
    part.works = true;
    part.clock = Clock(now);
    part.is_due = false;
    spans_.job_begins[place(at)] = now;
    count_computing(at, 1, now);
    settle(at, now);
  }

  // Lets a part compute at its present rate, and pushes an event for when it will be done.
  void settle(std::int64_t at, double now) {
    Part& part = parts_[at];
    if (!part.works) return;
    const std::int64_t number = job(at);
    const std::int64_t computing = computing_[sharing_.nodes[at]];
    const double plain = of(sharing_.slowdown, computing);
    const double bound = of(sharing_.memory_slowdown, computing);
    const double factor = plain + step_.memory_bound[number] * (bound - plain);
    double handled = 0.0;
    for (const auto& [message, fraction] : part.handled) handled += fraction;
    part.clock.go(std::max(kLeast, 1 - handled) / factor, now);
    const double due = std::max(now, part.clock.when(step_.seconds[number]));
    if (part.is_due && due == part.due) return;
    part.due = due;
    part.is_due = true;
    push({due, 0, static_cast<std::int32_t>(at), 0, ++part.version});
  }

  static double of(const Span<double>& factors, std::int64_t computing) {
    return factors[std::min(computing, factors.size - 1)];
  }

  // Ends the job that is due.
  void end(std::int64_t at, double now) {
    Part& part = parts_[at];
    const std::int64_t number = job(at), first = first_message(at);
    spans_.job_ends[place(at)] = now;
    part.works = false;
    count_computing(at, -1, now);
    for (auto i = step_.send_pointers[number]; i < step_.send_pointers[number + 1]; ++i) {
      post(first + step_.sends[i], now);
    }
    ++part.next;
    next(at, now);
  }

  // Tells the other parts of a node that a part began or stopped computing.
  void count_computing(std::int64_t at, std::int64_t more, double now) {
    const std::int32_t node = sharing_.nodes[at];
    computing_[node] += more;
    if (!slows_) return;
    for (const std::int64_t other : of_node_[node]) {
      if (other != at) settle(other, now);
    }
  }

  void push(Event event) {
    event.count = ++count_;
    events_.push(event);
  }

  // -------------------------------------------------------------- travelling

  std::int32_t sender(std::int64_t message) const { return step_.senders[message % messages_]; }
  std::int32_t receiver(std::int64_t message) const {
    return step_.receivers[message % messages_];
  }

  // Lets a message leave, or wait for those before it.
  void post(std::int64_t message, double now) {
    auto& leaving = parts_[sender(message)].leaving;
    leaving.push_back(message);
    if (!sharing_.queues || leaving.size() == 1) depart(message, now);
  }

  // Whether messages are on their way from a part to another one.
  bool is_between(std::int64_t from, std::int64_t to) const {
    const auto& under_way = parts_[from].under_way;
    return std::any_of(under_way.begin(), under_way.end(),
                       [&](std::int64_t message) { return receiver(message) == to; });
  }

  // Tells what travels from a part to another one whether anything comes the other way.
  void go_all(std::int64_t from, std::int64_t to, bool against, double now) {
    for (const std::int64_t message : parts_[from].under_way) {
      if (receiver(message) == to) go(message, against, now);
    }
  }

  void depart(std::int64_t message, double now) {
    const std::int32_t from = sender(message), to = receiver(message);
    const bool is_first = !is_between(from, to);
    parts_[from].under_way.push_back(message);
    clocks_[message] = Clock(now);
    spans_.message_begins[message] = spans_.message_ends[message] = now;
    go(message, is_between(to, from), now);
    if (is_first) go_all(to, from, true, now);
  }

  // Lets a message go on at the rate of a link with or without messages the other way.
  void go(std::int64_t message, bool against, double now) {
    const std::int64_t number = message % messages_;
    const double seconds = step_.travel[number], both_ways = step_.both_ways[number];
    if (seconds == both_ways && versions_[message] != 0) return;
    const double rate = against && seconds != 0 ? seconds / both_ways : 1.0;
    clocks_[message].go(rate, now);
    const double handling = step_.handling[number];
    if (handling != 0 && seconds != 0) {
      for (const std::int32_t at : {sender(message), receiver(message)}) {
        auto& handled = parts_[at].handled;
        const auto known = find(handled, message);
        const double fraction = rate * handling / seconds;
        if (known == handled.end()) {
          handled.emplace_back(message, fraction);
        } else {
          known->second = fraction;
        }
        settle(at, now);
      }
    }
    push({std::max(now, clocks_[message].when(seconds)), 0, -1, message, ++versions_[message]});
  }

  static std::vector<std::pair<std::int64_t, double>>::iterator find(
      std::vector<std::pair<std::int64_t, double>>& handled, std::int64_t message) {
    return std::find_if(handled.begin(), handled.end(),
                        [&](const auto& item) { return item.first == message; });
  }

  // Takes a message off the link, and lets the next one leave.
  void leave(std::int64_t message, double now) {
    const std::int32_t from = sender(message), to = receiver(message);
    auto& under_way = parts_[from].under_way;
    under_way.erase(std::find(under_way.begin(), under_way.end(), message));
    for (const std::int32_t at : {from, to}) {
      auto& handled = parts_[at].handled;
      const auto known = find(handled, message);
      if (known == handled.end()) continue;
      handled.erase(known);
      settle(at, now);
    }
    if (!is_between(from, to)) go_all(to, from, false, now);
    auto& leaving = parts_[from].leaving;
    leaving.erase(std::find(leaving.begin(), leaving.end(), message));
    double landing = now;
    if (sharing_.queues) {
      if (!leaving.empty()) depart(leaving.front(), now);
      const double taken = now - spans_.message_begins[message];
      landing = std::max(now, parts_[to].taken_in + taken);
      parts_[to].taken_in = landing;
    }
    if (landing > now) {
      versions_[message] = kLanding;
      push({landing, 0, -1, message, kLanding});
    } else {
      arrive(message, now);
    }
  }

  void arrive(std::int64_t message, double now) {
    spans_.message_ends[message] = now;
    arrived_[message] = true;
    if (!awaited_[message]) return;
    awaited_[message] = false;
    const std::int32_t at = receiver(message);
    if (--parts_[at].missing == 0) begin(at, now);
  }

  const TimedStep step_;
  const Sharing sharing_;
  const std::int64_t steps_, jobs_, messages_;
  std::vector<Part> parts_;
  std::vector<bool> awaited_, arrived_;  // whether the receiver waits for a message now
  std::vector<std::int32_t> versions_;
  std::vector<Clock> clocks_;
  std::vector<std::vector<std::int64_t>> of_node_;  // its parts
  std::vector<std::int64_t> computing_;             // parts of each node that compute
  bool slows_ = false;  // whether parts that compute slow others down
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
  std::int64_t count_ = 0;
  Spans spans_;
};

// What the jobs of a part await is sent to it, and what they send is sent by it.
void check_ends(const char* name, Span<std::int64_t> pointers, Span<std::int32_t> messages,
                std::int64_t first, std::int64_t end, Span<std::int32_t> part_of_message,
                std::int64_t part) {
  for (std::int64_t at = pointers[first]; at < pointers[end]; ++at) {
    const std::int32_t own = part_of_message[messages[at]];
    if (own == part) continue;
    fail(name, at, messages[at],
         "a message of part " + std::to_string(part) + ", not of part " + std::to_string(own));
  }
}

void check(const TimedStep& step, const Sharing& sharing) {
  const std::int64_t jobs = step.seconds.size, messages = step.senders.size;
  const std::int64_t parts = sharing.nodes.size;
  check_length("part_pointers", step.part_pointers.size, parts + 1, "one more than parts");
  check_pointers("part_pointers", step.part_pointers, nullptr, jobs, "jobs");
  check_length("memory_bound", step.memory_bound.size, jobs, "one per job");
  check_length("await_pointers", step.await_pointers.size, jobs + 1, "one more than jobs");
  check_pointers("await_pointers", step.await_pointers, nullptr, step.awaits.size, "awaits");
  check_length("send_pointers", step.send_pointers.size, jobs + 1, "one more than jobs");
  check_pointers("send_pointers", step.send_pointers, nullptr, step.sends.size, "sends");
  check_below("awaits", step.awaits, messages);
  check_below("sends", step.sends, messages);
  check_below("senders", step.senders, parts);
  check_length("receivers", step.receivers.size, messages, "one per message");
  check_below("receivers", step.receivers, parts);
  for (const auto& values : {step.travel, step.both_ways, step.handling}) {
    check_length("seconds of messages", values.size, messages, "one per message");
  }
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t first = step.part_pointers[part], end = step.part_pointers[part + 1];
    check_ends("awaits", step.await_pointers, step.awaits, first, end, step.receivers, part);
    check_ends("sends", step.send_pointers, step.sends, first, end, step.senders, part);
  }
  check_not_negative("nodes", sharing.nodes);
  for (const auto& factors : {sharing.slowdown, sharing.memory_slowdown}) {
    if (factors.size < 1) fail("number of slow-downs", factors.size, "1 or more");
  }
}

}  // namespace

Spans simulate(const TimedStep& step, const Sharing& sharing, std::int64_t steps) {
  check(step, sharing);
  return Simulation(step, sharing, steps).run();
}

}  // namespace hgpart
