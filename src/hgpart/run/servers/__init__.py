"""Model, workers -> ServedModel: training by parameter servers, in a process of several."""
