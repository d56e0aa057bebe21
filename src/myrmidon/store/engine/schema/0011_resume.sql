-- oldest code: 1
-- Resume: what a later revision of a job may take over from an earlier one.

-- identity is a digest of the function and of what it reaches in its code. resume_scope names the calls of an earlier
-- revision that may answer the task; NULL for a task that only idempotent slices let answer.
ALTER TABLE task_requests {add_column} identity VARCHAR(64);
ALTER TABLE task_requests {add_column} resume_scope VARCHAR(400);

-- Counts the jobs that had this external id, itself included.
ALTER TABLE jobs {add_column} revision INT NOT NULL DEFAULT 1;
