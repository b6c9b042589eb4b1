#include "covering_program.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace hgpart {
namespace {

constexpr double kSmall = 1e-9, kLeastPivot = 1e-7, kSingular = 1e-11;
constexpr int kRefactorAfter = 100, kMostPivots = 3'000, kPatience = 200;

// Numbers of the columns that each row has of its own; those added come behind.
constexpr std::size_t kOwn = 2;

}  // namespace

// The last row is how many columns are taken: its sign is changed, so that it is at least -most.
CoveringProgram::CoveringProgram(std::vector<double> demands, double most,
                                 std::vector<double> penalties)
    : rows_(demands.size() + 1), demands_(std::move(demands)), penalties_(std::move(penalties)) {
  demands_.push_back(-most);
  begin();
}

// Nothing is taken: the basis is what is missing of each demand.
void CoveringProgram::begin() {
  basis_.clear();
  inverse_.assign(rows_ * rows_, 0.0);
  for (std::size_t row = 0; row < rows_; ++row) {
    const bool is_last = row + 1 == rows_;
    basis_.push_back(kOwn * row + is_last);
    inverse_[row * rows_ + row] = is_last ? -1.0 : 1.0;
  }
  values_ = in_basis(demands_);
}

void CoveringProgram::add(const std::vector<double>& column, double cost) {
  columns_.push_back(column);
  columns_.back().push_back(-1.0);
  costs_.push_back(cost);
}

std::vector<double> CoveringProgram::column_of(std::size_t number) const {
  if (number >= kOwn * rows_) return columns_[number - kOwn * rows_];
  std::vector<double> column(rows_, 0.0);
  column[number / kOwn] = number % kOwn == 0 ? 1.0 : -1.0;
  return column;
}

double CoveringProgram::cost_of(std::size_t number) const {
  if (number >= kOwn * rows_) return costs_[number - kOwn * rows_];
  return number % kOwn == 0 ? penalties_[number / kOwn] : 0.0;
}

std::vector<double> CoveringProgram::in_basis(const std::vector<double>& column) const {
  std::vector<double> result(rows_, 0.0);
  for (std::size_t at = 0; at < rows_; ++at) {
    if (column[at] == 0.0) continue;
    for (std::size_t row = 0; row < rows_; ++row) {
      result[row] += inverse_[row * rows_ + at] * column[at];
    }
  }
  return result;
}

// Inverts the basis anew by Gauss and Jordan's method.
void CoveringProgram::refactor() {
  std::vector<double> matrix(rows_ * rows_, 0.0);
  for (std::size_t at = 0; at < rows_; ++at) {
    const auto column = column_of(basis_[at]);
    for (std::size_t row = 0; row < rows_; ++row) matrix[row * rows_ + at] = column[row];
  }
  inverse_.assign(rows_ * rows_, 0.0);
  for (std::size_t at = 0; at < rows_; ++at) inverse_[at * rows_ + at] = 1.0;
  for (std::size_t at = 0; at < rows_; ++at) {
    std::size_t best = at;
    for (std::size_t row = at; row < rows_; ++row) {
      if (std::abs(matrix[row * rows_ + at]) > std::abs(matrix[best * rows_ + at])) best = row;
    }
    if (std::abs(matrix[best * rows_ + at]) < kSingular) {
      begin();
      return;
    }
    if (best != at) {
      for (std::size_t column = 0; column < rows_; ++column) {
        std::swap(matrix[best * rows_ + column], matrix[at * rows_ + column]);
        std::swap(inverse_[best * rows_ + column], inverse_[at * rows_ + column]);
      }
    }
    const double scale = 1.0 / matrix[at * rows_ + at];
    for (std::size_t column = 0; column < rows_; ++column) {
      matrix[at * rows_ + column] *= scale;
      inverse_[at * rows_ + column] *= scale;
    }
    for (std::size_t row = 0; row < rows_; ++row) {
      const double factor = matrix[row * rows_ + at];
      if (row == at || factor == 0.0) continue;
      for (std::size_t column = 0; column < rows_; ++column) {
        matrix[row * rows_ + column] -= factor * matrix[at * rows_ + column];
        inverse_[row * rows_ + column] -= factor * inverse_[at * rows_ + column];
      }
    }
  }
  values_ = in_basis(demands_);
}

void CoveringProgram::find_prices() {
  prices_.assign(rows_, 0.0);
  for (std::size_t row = 0; row < rows_; ++row) {
    const double cost = cost_of(basis_[row]);
    if (cost == 0.0) continue;
    for (std::size_t at = 0; at < rows_; ++at) {
      prices_[at] += cost * inverse_[row * rows_ + at];
    }
  }
}

// Exchanges a column of the basis for one that lowers the cost; returns whether there is any.
bool CoveringProgram::pivot() {
  find_prices();
  operations_ += static_cast<double>(rows_ * (2 * rows_ + columns_.size()));
  double best = -kSmall;
  std::size_t entering = 0;
  bool found = false;
  const auto consider = [&](std::size_t number, double reduced) {
    if (reduced < best && !(careful_ && found)) {
      best = reduced;
      entering = number;
      found = true;
    }
  };
  for (std::size_t row = 0; row < rows_; ++row) {
    if (row + 1 < rows_) consider(kOwn * row, penalties_[row] - prices_[row]);
    consider(kOwn * row + 1, prices_[row]);
  }
  for (std::size_t at = 0; at < columns_.size(); ++at) {
    double reduced = costs_[at];
    const auto& column = columns_[at];
    for (std::size_t row = 0; row < rows_; ++row) reduced -= prices_[row] * column[row];
    consider(kOwn * rows_ + at, reduced);
  }
  if (!found) return false;
  const auto direction = in_basis(column_of(entering));
  // Harris's test: of the rows that are empty about first, the one with the largest pivot.
  double reach = std::numeric_limits<double>::infinity();
  for (std::size_t row = 0; row < rows_; ++row) {
    if (direction[row] <= kLeastPivot) continue;
    reach = std::min(reach, (std::max(0.0, values_[row]) + kSmall) / direction[row]);
  }
  std::size_t leaving = rows_;
  for (std::size_t row = 0; row < rows_; ++row) {
    if (direction[row] <= kLeastPivot) continue;
    if (std::max(0.0, values_[row]) > reach * direction[row]) continue;
    if (leaving == rows_ ||
        (careful_ ? basis_[row] < basis_[leaving] : direction[row] > direction[leaving])) {
      leaving = row;
    }
  }
  if (leaving == rows_) return false;
  const double least = std::max(0.0, values_[leaving]) / direction[leaving];
  basis_[leaving] = entering;
  const double scale = 1.0 / direction[leaving];
  for (std::size_t at = 0; at < rows_; ++at) inverse_[leaving * rows_ + at] *= scale;
  for (std::size_t row = 0; row < rows_; ++row) {
    if (row == leaving || direction[row] == 0.0) continue;
    for (std::size_t at = 0; at < rows_; ++at) {
      inverse_[row * rows_ + at] -= direction[row] * inverse_[leaving * rows_ + at];
    }
    values_[row] -= least * direction[row];
  }
  values_[leaving] = least;
  return true;
}

double CoveringProgram::solve() {
  careful_ = false;
  double cost = 0.0, last = 0.0;
  int without_gain = 0;
  for (int pivots = 0; pivots < kMostPivots && pivot(); ++pivots) {
    if (pivots % kRefactorAfter == kRefactorAfter - 1) refactor();
    cost = 0.0;
    for (std::size_t row = 0; row < rows_; ++row) cost += cost_of(basis_[row]) * values_[row];
    without_gain = pivots > 0 && cost >= last - 1e-12 ? without_gain + 1 : 0;
    careful_ = without_gain > kPatience;
    last = cost;
  }
  refactor();
  find_prices();
  cost = 0.0;
  for (std::size_t row = 0; row < rows_; ++row) cost += cost_of(basis_[row]) * values_[row];
  return cost;
}

std::vector<double> CoveringProgram::taken() const {
  std::vector<double> taken(columns_.size(), 0.0);
  for (std::size_t row = 0; row < rows_; ++row) {
    if (basis_[row] >= kOwn * rows_) taken[basis_[row] - kOwn * rows_] = values_[row];
  }
  return taken;
}

std::vector<double> CoveringProgram::missing() const {
  std::vector<double> missing(rows_ - 1, 0.0);
  for (std::size_t row = 0; row < rows_; ++row) {
    const bool is_missing = basis_[row] < kOwn * (rows_ - 1) && basis_[row] % kOwn == 0;
    if (is_missing) missing[basis_[row] / kOwn] = values_[row];
  }
  return missing;
}

}  // namespace hgpart
