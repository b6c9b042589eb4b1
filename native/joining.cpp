#include "joining.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <utility>

#include "array_checks.hpp"

namespace hgpart {
namespace {

using Run = std::vector<Group>;

struct Need {
  std::int32_t unit;
  double travel;
};

// Units, each of them one or several of the given ones.
struct Units {
  std::vector<std::int32_t> parts;
  std::vector<double> times;
  std::vector<std::vector<Need>> needs;
  std::vector<Group> groups;

  std::int64_t size() const { return static_cast<std::int64_t>(parts.size()); }
};

// The order in which parts begin units: of what has arrived, the one with the longest work after
// it.
std::vector<std::int32_t> interleaved(const Units& units, std::int32_t k) {
  using Entry = std::pair<double, std::int32_t>;
  using LeastFirst = std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>>;
  const std::int64_t count = units.size();
  std::vector<std::vector<Need>> behind(count);
  std::vector<std::int32_t> missing(count);
  for (std::int32_t unit = 0; unit < count; ++unit) {
    for (const Need& need : units.needs[unit]) behind[need.unit].push_back({unit, need.travel});
    missing[unit] = static_cast<std::int32_t>(units.needs[unit].size());
  }
  std::vector<double> left(count, 0.0);  // seconds to the end of all that follows
  for (std::int64_t unit = count - 1; unit >= 0; --unit) {
    double later = 0.0;
    bool is_first = true;
    for (const Need& follower : behind[unit]) {
      const double after = follower.travel + left[follower.unit];
      later = is_first ? after : std::max(later, after);
      is_first = false;
    }
    left[unit] = units.times[unit] + later;
  }
  std::vector<double> arrival(count, 0.0), free(k, 0.0);
  std::vector<LeastFirst> coming(k), ready(k);
  for (std::int32_t unit = 0; unit < count; ++unit) {
    if (missing[unit] == 0) coming[units.parts[unit]].push({0.0, unit});
  }
  std::vector<std::int32_t> order;
  order.reserve(count);
  while (static_cast<std::int64_t>(order.size()) < count) {
    // The part that can begin first; nothing that becomes ready later can begin earlier.
    std::int32_t first = -1;
    double begin = 0.0;
    for (std::int32_t part = 0; part < k; ++part) {
      if (ready[part].empty() && coming[part].empty()) continue;
      const double at =
          ready[part].empty() ? std::max(free[part], coming[part].top().first) : free[part];
      if (first < 0 || at < begin) {
        first = part;
        begin = at;
      }
    }
    while (!coming[first].empty() && coming[first].top().first <= begin) {
      const std::int32_t unit = coming[first].top().second;
      coming[first].pop();
      ready[first].push({-left[unit], unit});
    }
    const std::int32_t unit = ready[first].top().second;
    ready[first].pop();
    order.push_back(unit);
    const double end = begin + units.times[unit];
    free[first] = end;
    for (const Need& follower : behind[unit]) {
      const std::int32_t next = follower.unit;
      arrival[next] = std::max(arrival[next], end + follower.travel);
      if (--missing[next] == 0) coming[units.parts[next]].push({arrival[next], next});
    }
  }
  return order;
}

// Seconds until the last unit is done, if parts do their units in this order.
double end_of(const Units& units, const std::vector<std::int32_t>& order, std::int32_t k) {
  std::vector<double> ends(units.size(), 0.0), free(k, 0.0);
  double last = 0.0;
  for (const std::int32_t unit : order) {
    double begin = free[units.parts[unit]];
    for (const Need& need : units.needs[unit]) {
      begin = std::max(begin, ends[need.unit] + need.travel);
    }
    ends[unit] = free[units.parts[unit]] = begin + units.times[unit];
    last = std::max(last, ends[unit]);
  }
  return last;
}

// The units when some groups of them are one each, generation by generation.
Units together(const WorkUnits& units, const std::vector<Group>& some) {
  const std::int64_t count = units.parts.size;
  std::vector<Group> groups = some;
  std::vector<std::int32_t> group_of(count, -1);
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (const std::int32_t unit : groups[group]) group_of[unit] = static_cast<std::int32_t>(group);
  }
  for (std::int32_t unit = 0; unit < count; ++unit) {
    if (group_of[unit] >= 0) continue;
    group_of[unit] = static_cast<std::int32_t>(groups.size());
    groups.push_back({unit});
  }
  const std::int64_t size = static_cast<std::int64_t>(groups.size());
  std::vector<std::vector<Need>> needs(size);
  std::vector<std::vector<std::int32_t>> followers(size);
  std::vector<std::int32_t> known, place(size, -1);  // groups as they are first named
  std::vector<bool> is_known(size, false);
  const auto name = [&](std::int32_t group) {
    if (!is_known[group]) known.push_back(group);
    is_known[group] = true;
  };
  for (std::int32_t group = 0; group < size; ++group) {
    auto& own = needs[group];
    for (const std::int32_t unit : groups[group]) {
      for (auto at = units.pointers[unit]; at < units.pointers[unit + 1]; ++at) {
        const std::int32_t behind = group_of[units.needs[at]];
        const double travel = units.travels[at];
        if (place[behind] < 0) {
          place[behind] = static_cast<std::int32_t>(own.size());
          own.push_back({behind, std::max(travel, 0.0)});
        } else {
          own[place[behind]].travel = std::max(own[place[behind]].travel, travel);
        }
      }
    }
    name(group);
    for (const Need& need : own) {
      place[need.unit] = -1;
      name(need.unit);
      followers[need.unit].push_back(group);
    }
  }
  std::vector<std::int32_t> missing(size), order, numbers(size, -1);
  for (std::int32_t group = 0; group < size; ++group) {
    missing[group] = static_cast<std::int32_t>(needs[group].size());
  }
  for (const std::int32_t group : known) {
    if (missing[group] == 0) order.push_back(group);
  }
  for (std::size_t at = 0; at < order.size(); ++at) {
    numbers[order[at]] = static_cast<std::int32_t>(at);
    for (const std::int32_t follower : followers[order[at]]) {
      if (--missing[follower] == 0) order.push_back(follower);
    }
  }
  if (order.size() < groups.size()) {
    throw InvalidHypergraph("units that are alike need each other, expected units of one layer");
  }
  Units merged;
  for (const std::int32_t group : order) {
    const Group& members = groups[group];
    double seconds = 0.0;
    for (const std::int32_t unit : members) seconds += units.seconds[unit];
    merged.parts.push_back(units.parts[members[0]]);
    merged.times.push_back(seconds + units.once[members[0]]);
    auto own = needs[group];
    for (Need& need : own) need.unit = numbers[need.unit];
    merged.needs.push_back(std::move(own));
    merged.groups.push_back(members);
  }
  return merged;
}

// The unit that a part does just before this one for the same share; -1 if there is none.
std::int32_t before(const WorkUnits& units, std::int32_t unit) {
  std::int32_t last = -1;
  for (auto at = units.pointers[unit]; at < units.pointers[unit + 1]; ++at) {
    const std::int32_t needed = units.needs[at];
    if (units.parts[needed] == units.parts[unit]) last = std::max(last, needed);
  }
  return last;
}

// Runs of units that can be joined: one after the other on one part, for the same shares.
std::vector<Run> runs_of(const WorkUnits& units, const std::vector<std::int64_t>& place) {
  std::vector<std::int32_t> by_place;
  for (std::int32_t unit = 0; unit < units.parts.size; ++unit) {
    if (units.alike[unit] >= 0) by_place.push_back(unit);
  }
  std::sort(by_place.begin(), by_place.end(),
            [&](std::int32_t left, std::int32_t right) { return place[left] < place[right]; });
  std::map<std::pair<std::int32_t, std::int32_t>, Group> classes;
  for (const std::int32_t unit : by_place) {
    classes[{units.parts[unit], units.alike[unit]}].push_back(unit);
  }
  std::vector<std::pair<std::int32_t, Group>> groups;
  for (auto& [_, group] : classes) {
    if (group.size() > 1) groups.push_back({*std::min_element(group.begin(), group.end()), group});
  }
  std::sort(groups.begin(), groups.end());
  std::vector<Run> runs;
  std::vector<std::int64_t> run_of(units.parts.size, -1);  // of units in runs, and the share there
  std::vector<std::size_t> share_of(units.parts.size, 0);
  for (const auto& [_, group] : groups) {
    Group previous;
    bool goes_on = true;
    std::int64_t run = -1;
    for (const std::int32_t unit : group) {
      const std::int32_t last = before(units, unit);
      previous.push_back(last);
      if (last < 0 || run_of[last] < 0 || (run >= 0 && run_of[last] != run)) {
        goes_on = false;
        break;
      }
      run = run_of[last];
    }
    if (goes_on) {
      goes_on = runs[run][0].size() == group.size();
      Group last = runs[run].back(), sorted = previous;
      std::sort(last.begin(), last.end());
      std::sort(sorted.begin(), sorted.end());
      goes_on = goes_on && last == sorted;
    }
    if (goes_on) {
      Group next(group.size());
      for (std::size_t at = 0; at < group.size(); ++at) next[share_of[previous[at]]] = group[at];
      runs[run].push_back(next);
    } else {
      run = static_cast<std::int64_t>(runs.size());
      runs.push_back({group});
    }
    const Group& last = runs[run].back();
    for (std::size_t at = 0; at < last.size(); ++at) {
      run_of[last[at]] = run;
      share_of[last[at]] = at;
    }
  }
  return runs;
}

void check(const WorkUnits& units) {
  const std::int64_t count = units.parts.size;
  check_not_negative("parts", units.parts);
  check_length("seconds", units.seconds.size, count, "one per unit");
  check_length("once", units.once.size, count, "one per unit");
  check_length("alike", units.alike.size, count, "one per unit");
  check_length("pointers", units.pointers.size, count + 1, "one more than units");
  check_pointers("pointers", units.pointers, nullptr, units.needs.size, "needs");
  check_length("travels", units.travels.size, units.needs.size, "one per need");
  for (std::int64_t unit = 0; unit < count; ++unit) {
    check_below("needs",
                {units.needs.data + units.pointers[unit],
                 units.pointers[unit + 1] - units.pointers[unit]},
                unit, units.pointers[unit]);
  }
}

}  // namespace

std::vector<Group> joined(const WorkUnits& units, std::int64_t most, double rounding) {
  check(units);
  const std::int64_t count = units.parts.size;
  std::int32_t k = 1;
  for (const std::int32_t part : units.parts) k = std::max(k, part + 1);
  std::vector<Group> chosen;
  Units whole = together(units, chosen);
  std::vector<std::int32_t> order = interleaved(whole, k);
  std::vector<std::int64_t> place(count);
  for (std::size_t at = 0; at < order.size(); ++at) {
    for (const std::int32_t unit : whole.groups[order[at]]) place[unit] = static_cast<std::int64_t>(at);
  }
  double least = end_of(whole, order, k);
  std::vector<Run> waiting = runs_of(units, place);
  const std::int64_t tries = most / std::max<std::int64_t>(1, count);
  for (std::int64_t tried = 0; tried < tries && !waiting.empty(); ++tried) {
    const Run run = std::move(waiting.back());
    waiting.pop_back();
    std::vector<Group> more = chosen;
    more.insert(more.end(), run.begin(), run.end());
    const Units units_tried = together(units, more);
    const double end = end_of(units_tried, interleaved(units_tried, k), k);
    if (end <= least * (1 + rounding)) {
      least = std::min(end, least);
      chosen = std::move(more);
      continue;
    }
    const std::size_t half = run[0].size() / 2;
    Run first, second;
    for (const Group& group : run) {
      first.emplace_back(group.begin(), group.begin() + static_cast<std::ptrdiff_t>(half));
      second.emplace_back(group.begin() + static_cast<std::ptrdiff_t>(half), group.end());
    }
    for (Run& half_run : {std::ref(first), std::ref(second)}) {
      if (half_run[0].size() > 1) waiting.push_back(std::move(half_run));
    }
  }
  whole = together(units, chosen);
  std::vector<Group> groups;
  for (const std::int32_t unit : interleaved(whole, k)) {
    Group group = whole.groups[unit];
    std::sort(group.begin(), group.end());
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace hgpart
