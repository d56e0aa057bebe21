-- oldest code: 1
-- What the commands of tasks read from their standard input.
CREATE TABLE IF NOT EXISTS task_stdin (
    task_id {id},
    content {blob} NOT NULL
){table};
