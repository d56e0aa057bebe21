"""Access to the operating system: processes, files, clocks, hardware facts."""
