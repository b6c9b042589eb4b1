"""Connection -> Machine: the processes of a run measure their devices and links."""
