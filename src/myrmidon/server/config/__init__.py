"""The settings folder: bot groups, pools and scripts, parsed and checked."""
