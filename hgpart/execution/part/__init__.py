"""PartProgram -> PartRun -> StepRun: what one part does with a batch, and in a step of several."""
