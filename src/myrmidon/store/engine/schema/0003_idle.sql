-- oldest code: 1
-- Since when a bot is idle, and since when it was idle when it claimed a run. Older code leaves both empty.

ALTER TABLE bots {add_column} idle_at BIGINT;
ALTER TABLE task_runs {add_column} idle_since BIGINT;
