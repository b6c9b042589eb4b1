"""Partition -> Explanation: why each layer lies where it does; two of them -> PlanDifference."""
