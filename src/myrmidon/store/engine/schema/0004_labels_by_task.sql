-- oldest code: 1
-- The label of a task is shown with the task, its parents and its events.

CREATE INDEX IF NOT EXISTS task_labels_task ON task_labels (task_id);
