-- oldest code: 1
-- Since when a bot is idle, and was when it got a run: so every list of results can tell it without looking at other runs.
-- Code of before leaves both empty.

ALTER TABLE bots {add_column} idle_at BIGINT;
ALTER TABLE task_runs {add_column} idle_since BIGINT;
