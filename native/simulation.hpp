// When parts do their jobs, each as soon as it can, and when messages travel; see
// src/hgpart/prediction/simulation.py.
#pragma once

#include <cstdint>
#include <vector>

#include "hypergraph.hpp"

namespace hgpart {

// Jobs lie part after part, each part's in the order in which it does them. What a job awaits and
// sends are numbers of messages, in lists one after another (CSR).
struct TimedStep {
  Span<std::int64_t> part_pointers;  // parts + 1 entries: the jobs of each part
  Span<double> seconds;              // of each job, while nothing else runs on the node
  Span<double> memory_bound;         // the fraction of them in which it reads and writes
  Span<std::int64_t> await_pointers;
  Span<std::int32_t> awaits;
  Span<std::int64_t> send_pointers;
  Span<std::int32_t> sends;
  Span<std::int32_t> senders, receivers;  // of each message
  Span<double> travel;                    // seconds over a link without other messages
  Span<double> both_ways;                 // seconds while messages are sent the other way as well
  Span<double> handling;                  // seconds of computing at both ends
};

struct Sharing {
  Span<std::int32_t> nodes;       // of each part
  Span<double> slowdown;          // by the number of parts of a node that compute, from 0 on
  Span<double> memory_slowdown;   // the same of memory-bound computing
  bool queues;                    // whether a part sends, and receives, one message at a time
};

// Seconds at which jobs and messages begin and end, step after step. What is never done begins and
// ends at -1.
struct Spans {
  std::vector<double> job_begins, job_ends;
  std::vector<double> message_begins, message_ends;
};

// The jobs of all parts, `steps` times one after another. Throws InvalidHypergraph if a number is
// out of range.
Spans simulate(const TimedStep& step, const Sharing& sharing, std::int64_t steps);

}  // namespace hgpart
