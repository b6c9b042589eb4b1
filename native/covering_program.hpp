// A linear program that covers demands by columns, which grow in number: for column generation.
#pragma once

#include <cstddef>
#include <vector>

namespace hgpart {

// Minimises the cost of columns, each taken some number of times and `most` in all, that add up to
// at least the demands; what is missing of each costs its penalty a unit. By the revised simplex
// method.
class CoveringProgram {
 public:
  CoveringProgram(std::vector<double> demands, double most, std::vector<double> penalties);

  void add(const std::vector<double>& column, double cost);

  // Goes on from the last basis; returns the least cost.
  double solve();

  // What a unit more of each demand costs, at the last solution.
  const std::vector<double>& prices() const { return prices_; }

  // Operations of all solutions, as a measure of time.
  double operations() const { return operations_; }

  // How often each column is taken there.
  std::vector<double> taken() const;

  // How much of each demand is not met there.
  std::vector<double> missing() const;

 private:
  // Columns are those added, then what is missing, then what is too much, of each row.
  std::vector<double> column_of(std::size_t number) const;
  double cost_of(std::size_t number) const;
  std::vector<double> in_basis(const std::vector<double>& column) const;
  void begin();
  void refactor();
  void find_prices();
  bool pivot();

  std::size_t rows_;
  std::vector<double> demands_, penalties_;
  std::vector<std::vector<double>> columns_;
  std::vector<double> costs_;
  std::vector<std::size_t> basis_;  // the column of each row
  std::vector<double> inverse_, values_, prices_;
  double operations_ = 0.0;
  bool careful_ = false;  // by Bland's rule, which can't cycle
};

}  // namespace hgpart
