"""Connection -> Machine: what the processes of a run measure of where they are."""
