"""What torch.export returns -> a program that can be divided: pure, its names fit for code."""
