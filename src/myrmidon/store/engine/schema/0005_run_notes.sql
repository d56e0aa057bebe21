-- oldest code: 1

-- The running task that has added this one to its job; NULL for tasks that a person has submitted.
ALTER TABLE task_labels {add_column} added_by BIGINT;

-- A summary in Markdown that a task shows with itself.
CREATE TABLE IF NOT EXISTS task_annotations (
    task_id {id},
    run INT NOT NULL,
    written_at BIGINT NOT NULL,
    content {longtext} NOT NULL
){table};

-- Small texts by name that the tasks of a job share.
CREATE TABLE IF NOT EXISTS job_meta (
    job_id BIGINT NOT NULL,
    name VARCHAR(64) NOT NULL,
    value {longtext} NOT NULL,
    written_at BIGINT NOT NULL,
    PRIMARY KEY (job_id, name)
){clustered};
