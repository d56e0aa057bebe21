-- oldest code: 1

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
